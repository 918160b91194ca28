// Builds elements (strings always become text) and updates pages in place, which preserves focus, scrolling and charts.

/** Creates an element: `on…` are event handlers, `spec` is the data of a chart, all other props are attributes. */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value == null || value === false) continue;
    if (name === 'spec' || name.startsWith('on')) element[name] = value;
    else if (name === 'href' && !/^(#|\.?\/)/.test(value)) {
      throw new Error(`links must start with #, / or ./, got ${value}`);
    }
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

const HANDLERS = ['onclick', 'oninput', 'onchange', 'onsubmit', 'onkeydown'];

function canUpdate(now, next) {
  if (now.nodeName !== next.nodeName) return false;
  return (
    now.nodeType !== Node.ELEMENT_NODE ||
    ['data-key', 'data-chart', 'type'].every((name) => now.getAttribute(name) === next.getAttribute(name)));
}

function copyAttributes(now, next) {
  for (const { name } of [...now.attributes]) if (name !== 'open' && !next.hasAttribute(name)) now.removeAttribute(name);
  for (const { name, value } of next.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  for (const name of HANDLERS) now[name] = next[name];
  if (now.type === 'checkbox') now.checked = next.hasAttribute('checked');
  else if (now.localName === 'input' && now !== document.activeElement) now.value = next.value;
}

function morph(container, target) {
  const before = [...container.childNodes];
  const after = [...target.childNodes];
  after.forEach((next, index) => {
    const now = before[index];
    if (!now) container.append(next);
    else if (!canUpdate(now, next)) now.replaceWith(next);
    else if (now.nodeType !== Node.ELEMENT_NODE) {
      if (now.data !== next.data) now.data = next.data;
    } else if (now.hasAttribute('data-chart')) {
      now.setAttribute('aria-label', next.getAttribute('aria-label'));
      now.spec = next.spec;
    } else {
      copyAttributes(now, next);
      morph(now, next);
      if (now.localName === 'select') now.value = next.value;
    }
  });
  before.slice(after.length).forEach((old) => old.remove());
}

/** Replaces the children of `container` by these nodes, reusing existing elements where possible. */
export function fill(container, ...nodes) {
  const focused = container.contains(document.activeElement) ? document.activeElement : null;
  const href = focused?.getAttribute('href');
  morph(container, h('div', null, nodes));
  if (href && focused.getAttribute('href') !== href) {
    [...container.querySelectorAll('a[href]')]
      .find((link) => link.getAttribute('href') === href)
      ?.focus({ preventScroll: true });
  }
}
