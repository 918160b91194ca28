// Builds elements from data as text only, and changes a page in place so that focus, scrolling and charts survive.

/** An element: `on…` are functions, `spec` belongs to a chart, all else are attributes. Strings become text. */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value == null || value === false) continue;
    if (name === 'spec' || name.startsWith('on')) element[name] = value;
    else if (name === 'href' && !/^[#/]/.test(value)) throw new Error('links lead to this page or this server');
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((one) => one != null && one !== false));
  return element;
}

const HANDLERS = ['onclick', 'oninput', 'onchange', 'onsubmit', 'onkeydown'];

function alike(now, next) {
  if (now.nodeName !== next.nodeName) return false;
  return (
    now.nodeType !== Node.ELEMENT_NODE ||
    ['data-key', 'data-chart', 'type'].every((name) => now.getAttribute(name) === next.getAttribute(name)));
}

function take(now, next) {
  for (const { name } of [...now.attributes]) if (!next.hasAttribute(name)) now.removeAttribute(name);
  for (const { name, value } of next.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  for (const name of HANDLERS) now[name] = next[name];
  if (now.localName === 'input' && now !== document.activeElement) now.value = next.value;
}

function morph(place, wanted) {
  const before = [...place.childNodes];
  const after = [...wanted.childNodes];
  after.forEach((next, index) => {
    const now = before[index];
    if (!now) place.append(next);
    else if (!alike(now, next)) now.replaceWith(next);
    else if (now.nodeType !== Node.ELEMENT_NODE) {
      if (now.data !== next.data) now.data = next.data;
    } else if (now.hasAttribute('data-chart')) {
      now.setAttribute('aria-label', next.getAttribute('aria-label'));
      now.spec = next.spec;
    } else {
      take(now, next);
      morph(now, next);
      if (now.localName === 'select') now.value = next.value;
    }
  });
  before.slice(after.length).forEach((old) => old.remove());
}

/** Makes the children of `place` these nodes, changing what is there as little as possible. */
export function fill(place, ...nodes) {
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const href = focused?.getAttribute('href');
  morph(place, h('div', null, nodes));
  if (href && focused.getAttribute('href') !== href) {
    [...place.querySelectorAll('a[href]')]
      .find((link) => link.getAttribute('href') === href)
      ?.focus({ preventScroll: true });
  }
}
