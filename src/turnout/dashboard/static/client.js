// Client: turns, times and debt of one client, and explanations of selections; without an id, the list of clients.
import { band, chart, line, roundAxis } from './charts.js';
import { clientsRequest, clientsTable } from './clients.js';
import { h } from './dom.js';
import {
  badge, box, card, cards, certificate, charts, clientLink, facts, flagLegend, muted, navigation, renderSlot, roundLink,
} from './parts.js';
import { count, number, seconds, share, short, span, turns, words } from './format.js';

const FOLLOWED_CLIENTS = 100_000;
const MARKERS = { failed: ['bad', 'x'], late: ['warn', 'diamond'] };

function strip({ strip: data }, from) {
  const { x, width, available, chosen, resting } = data;
  const rounds = x.map((first) => span(first, width));
  return chart({
    id: 'client-strip', from, wide: true, height: 150, title: 'When was the client available, and when was it chosen?',
    caption: `Each bar is ${width === 1 ? `a ${words.round}` : `${count(width)} ${words.rounds}`}: the share in which ` +
      `the client was available and, in front, the share in which it was chosen. ${available ? '' : 'Availability is not recorded.'}` +
      (resting ? `In back-off after missed turns it is not available, and earns nothing.` : ''),
    traces: (c) =>
      [
        available && {
          type: 'bar', name: 'available', x, y: available, text: rounds, textposition: 'none',
          marker: { color: c.available },
          hovertemplate: '%{text}: available in %{y:.0%}<extra></extra>',
        },
        resting?.some((part) => part > 0) && {
          type: 'bar', name: 'backed off', x, y: resting, base: available ?? 0, text: rounds, textposition: 'none',
          marker: { color: c.resting },
          hovertemplate: '%{text}: backed off<extra></extra>',
        },
        {
          type: 'bar', name: 'chosen', x, y: chosen.map((total) => total / width), customdata: x,
          text: rounds.map((label, index) => `${label}: ${turns(chosen[index])}`), textposition: 'none',
          marker: { color: c.chosen }, hovertemplate: '%{text}<extra></extra>',
        },
      ].filter(Boolean),
    layout: () => ({ bargap: 0, xaxis: { ...roundAxis, isRounds: false }, yaxis: { range: [0, 1], tickformat: '.0%', nticks: 3 } }),
    click: (round) => navigation.update({ round }),
  });
}

function times({ times: data }, from) {
  const groups = ['arrived', 'late', 'failed'];
  const kind = (outcome) => (groups.includes(outcome) ? outcome : 'arrived');
  return chart({
    id: 'client-times', from, title: 'Does the client take as long as predicted?',
    caption:
      'Points are turns of the client, the line is the prediction before each turn, the band is the uncertainty of ' +
      'the model. Click a turn to explain its selection.',
    traces: (c) => [
      ...band(data.round, data.low, data.high, c.band),
      line(data.round, data.predicted, 'predicted', c.muted, { mode: 'lines', line: { width: 1.5 } }),
      ...groups.map((name) => {
        const shown = data.round.map((_, index) => index).filter((index) => kind(data.outcome[index]) === name);
        return {
          type: 'scatter', mode: 'markers', name: name === 'arrived' ? 'actual' : name,
          x: shown.map((index) => data.round[index]),
          y: shown.map((index) => data.seconds[index] ?? (name === 'failed' ? 0 : null)),
          customdata: shown.map((index) => data.round[index]), showlegend: shown.length > 0,
          text: shown.map((index) =>
              `${words.round} ${count(data.round[index])}: ${data.outcome[index]}, ${seconds(data.seconds[index])} ` +
                `(predicted ${seconds(data.predicted[index])})`),
          hovertemplate: '%{text}<extra></extra>', cliponaxis: false,
          marker: {
            size: 6, color: MARKERS[name] ? c[MARKERS[name][0]] : c.accent, symbol: MARKERS[name]?.[1] ?? 'circle',
          },
        };
      }),
    ],
    layout: () => ({ xaxis: roundAxis, yaxis: { title: 'seconds', rangemode: 'tozero' } }),
    click: (round) => navigation.update({ round }),
  });
}

function headCards(data) {
  return cards(
    data.status != null && certificate({ status: data.status, text: data.promise_text }),
    card(data.counted != null && data.counted !== data.turns ? 'Turns that count' : 'Turns',
      count(data.counted ?? data.turns),
      data.promised != null && `Promised: ${turns(data.promised)}; tolerance: ${turns(data.tolerance)}`,
      data.counted != null && data.counted !== data.turns && `Selected ${count(data.turns)} times`,
      `Share of ${data.about.share_of}: ${share(data.share)}`),
    data.about.has_queue && card('Owed', turns(data.owed),
      data.rank != null && `Rank ${count(data.rank)} of ${count(data.about.clients)} by debt`,
      data.forfeited > 0 && `Forfeited: ${turns(data.forfeited)}`),
    card('Mean time', seconds(data.mean_seconds), data.reliability != null && `Reliability ${share(data.reliability)}`),
    card('Available in', data.offered == null ? '–' : `${count(data.offered)} ${words.rounds}`,
      data.backed_off > 0 && `Backed off in ${count(data.backed_off)} ${words.rounds}`,
      data.joined ? `Joined after ${words.round} ${count(data.joined)}` : `Joined before the first ${words.round}`,
      [`Last turn in ${words.round} `, roundLink(data.last_round)]));
}

function figures(why) {
  const isPriced = why.unit === 'seconds';
  const worth = isPriced ? seconds : turns;
  return [
    ['Assumed time', seconds(why.seconds)], ['Usual time', seconds(why.usual)],
    [`Behind, this ${words.round} included`, turns(why.behind)], ['May be behind', turns(why.allowed)],
    [isPriced ? 'Price of a turn' : 'Owed', worth(why.owed)], [words.round === 'round' ? 'Assumed slowest time' : 'Assumed time of the chosen', seconds(why.threshold)],
    ['Objective', worth(why.objective)], ['Margin', worth(why.margin)],
    [isPriced ? 'Missing in the price' : 'Missing turns', worth(why.missing_turns)],
    ['Its turn comes in', why.rounds_until == null ? '–' : `${count(why.rounds_until)} ${words.rounds}`],
    ['Change of the duration', seconds(why.longer)], ['Worth', worth(why.worth)],
  ].filter(([, value]) => value !== '–');
}

function explanation(why) {
  return [
    h('p', null, badge(why.outcome === 'chosen' ? 'ok' : 'none', why.outcome), ' ',
      why.exact ? badge('ok', 'exact') : badge('warn', 'not exact'), ' ',
      h('span', { class: 'muted' },
        why.exact
          ? 'The selection was recomputed and agrees with the record.'
          : 'From the recorded reasons; the selection could not be recomputed.')),
    h('p', { class: 'sentence large' }, why.sentence), facts(figures(why)),
    why.instead?.length > 0 &&
      h('p', null, why.outcome === 'chosen' ? 'Would be chosen instead: ' : 'Would replace: ',
        why.instead.slice(0, 12).map((id, index) => [index > 0 && ', ', clientLink(id, { round: why.round })])),
  ];
}

function whyCard(data, slot, round) {
  const { rounds } = data.about;
  const show = (number) => navigation.update({ round: Math.min(Math.max(1, number), rounds) });
  return h(
    'section', { class: 'card', id: 'why' },
    h('h2', null, `Why was the client chosen or not chosen in ${words.round} ${count(round)}?`),
    h('div', { class: 'pager', role: 'group', 'aria-label': `Step through ${words.rounds}` },
      h('button', { type: 'button', disabled: round <= 1, onclick: () => show(round - 1) }, '← Previous'),
      h('button', { type: 'button', disabled: round >= rounds, onclick: () => show(round + 1) }, 'Next →'),
      h('button', { type: 'button', onclick: () => show(rounds) }, 'Latest'),
      h('label', null, `${words.Round} `,
        h('input', {
          type: 'number', min: 1, max: rounds, value: round, onchange: (event) => show(Number(event.target.value) || 1),
        })),
      h('span', { class: 'muted' }, `of ${count(rounds)}`)),
    slot?.waiting && muted(`Replaying the ${words.rounds} up to this one; this takes some seconds for long runs.`),
    renderSlot(slot, explanation));
}

/** The slot with the explanation of the newest round: that of the page, if it explains this round. */
const newest = (data, slots, settings) =>
  Number(settings.round ?? data.about.rounds) === data.about.rounds ? slots.explain : slots.next;

/** When the next turn is due, from the explanation of the newest round. */
function renderNext(data, slots, settings) {
  const why = newest(data, slots, settings)?.data;
  return why?.next && h('p', { class: 'sentence', id: 'next-turn' }, why.next);
}

const detail = (data, slots, settings) => [
  [...data.id].length > 40 && h('p', { class: 'full-id' }, h('bdi', null, data.id)), flagLegend([data]),
  headCards(data),
  box('Next turn', h('p', { class: 'sentence' }, data.next), renderNext(data, slots, settings)),
  data.about.rounds > 0 && whyCard(data, slots.explain, Number(settings.round ?? data.about.rounds)), strip(data, data),
  charts(times(data, data)),
  h('p', null, h('a', { href: navigation.link('client') }, 'All clients')),
];

export default {
  name: 'client', label: 'Client', about: ['id'], isByRound: ({ id }) => id != null,
  title: ({ id }) => (id == null ? 'Find a client' : `Client ${short(id, 40)}`),
  requests(settings, { client, next }) {
    if (settings.id == null) return { clients: clientsRequest(settings) };
    const rounds = client?.data?.about.rounds;
    const round = settings.round ?? rounds;
    // One explanation of the newest round at a time; in a large fleet only the first, because a replay takes long.
    const held = next?.waiting ?? (client?.data?.about.clients > FOLLOWED_CLIENTS ? next?.url : null);
    const latest = held ? new URLSearchParams(held.split('?')[1]).get('round') : rounds;
    return {
      client: { id: settings.id },
      ...(client?.data && round > 0 ? { explain: { id: settings.id, round, fixed: true } } : {}),
      ...(client?.data && rounds > 0 && Number(round) !== rounds
        ? { next: { path: 'explain', id: settings.id, round: latest, fixed: true } } : {}),
    };
  },
  view: (slots, settings) => settings.id == null
      ? box('All clients',
          renderSlot(slots.clients, (data) => clientsTable(data, settings.search)))
      : renderSlot(slots.client, (data) => detail(data, slots, settings)),
  /** Stores the last round in the address, so that a new round does not replace the explanation being read. */
  drawn: ({ client }, settings) => {
    if (client?.data && settings.id != null && !settings.round && client.data.about.rounds > 0)
      navigation.update({ round: client.data.about.rounds }, { replace: true });
  },
  step(by, { client }, settings) {
    const next = Number(settings.round) + by;
    if (client?.data && next >= 1 && next <= client.data.about.rounds) navigation.update({ round: next });
  },
};
