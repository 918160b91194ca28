// Client: one client's turns, times and debt, and why it was chosen or not; without an id, a way to find one.
import { band, chart, line, roundAxis } from './charts.js';
import { clientsTable, clientsWanted } from './clients.js';
import { h } from './dom.js';
import {
  answer, badge, box, card, cards, charts, clientLink, facts, flagLegend, muted, roundLink, steer,
} from './parts.js';
import { count, number, seconds, share, short, span, turns } from './words.js';

const CAME = { failed: ['bad', 'x'], late: ['warn', 'diamond'] };

function strip({ strip: told }, from) {
  const { x, width, available, chosen } = told;
  const rounds = x.map((first) => span(first, width));
  return chart({
    id: 'client-strip', from, wide: true, height: 150, title: 'When was it there, and when was it chosen?',
    read: `A bar is ${width === 1 ? 'a round' : `${count(width)} rounds`}: for how much of it the client was there, ` +
      `and in front of that how much was its turn. ${available ? 'Gaps: it was away.' : 'Who was there is not recorded.'}`,
    traces: (c) =>
      [
        available && {
          type: 'bar', name: 'there', x, y: available, text: rounds, textposition: 'none', marker: { color: c.there },
          hovertemplate: '%{text}: there %{y:.0%}<extra></extra>',
        },
        {
          type: 'bar', name: 'chosen', x, y: chosen.map((many) => many / width), customdata: x,
          text: rounds.map((words, place) => `${words}: ${turns(chosen[place])}`), textposition: 'none',
          marker: { color: c.chosen }, hovertemplate: '%{text}<extra></extra>',
        },
      ].filter(Boolean),
    layout: () => ({ bargap: 0, xaxis: roundAxis, yaxis: { range: [0, 1], tickformat: '.0%', nticks: 3 } }),
    click: (round) => steer.go({ round }),
  });
}

function times({ times: told }, from) {
  const groups = ['arrived', 'late', 'failed'];
  const kind = (outcome) => (groups.includes(outcome) ? outcome : 'arrived');
  return chart({
    id: 'client-times', from, title: 'Does it take as long as predicted?',
    read: 'Points are its turns, the line is what was predicted before each, the band what the model allows for. ' +
      'Click a turn to ask why it was chosen.',
    traces: (c) => [
      ...band(told.round, told.low, told.high, c.band),
      line(told.round, told.predicted, 'predicted', c.muted, { mode: 'lines', line: { width: 1.5 } }),
      ...groups.map((name) => {
        const mine = told.round.map((_, place) => place).filter((place) => kind(told.outcome[place]) === name);
        return {
          type: 'scatter', mode: 'markers', name: name === 'arrived' ? 'taken' : name,
          x: mine.map((place) => told.round[place]),
          y: mine.map((place) => told.seconds[place] ?? (name === 'failed' ? 0 : null)),
          customdata: mine.map((place) => told.round[place]), showlegend: mine.length > 0,
          text: mine.map((place) =>
              `round ${count(told.round[place])}: ${told.outcome[place]}, ${seconds(told.seconds[place])} ` +
                `(predicted ${seconds(told.predicted[place])})`),
          hovertemplate: '%{text}<extra></extra>', cliponaxis: false,
          marker: { size: 6, color: CAME[name] ? c[CAME[name][0]] : c.accent, symbol: CAME[name]?.[1] ?? 'circle' },
        };
      }),
    ],
    layout: () => ({ xaxis: roundAxis, yaxis: { title: 'seconds', rangemode: 'tozero' } }),
    click: (round) => steer.go({ round }),
  });
}

function numbers(told) {
  return cards(
    card('Turns', count(told.turns), `${share(told.share)} of the rounds`,
      told.promised != null && `Promised: ${turns(told.promised)}`),
    card('Owed', turns(told.owed),
      told.rank != null && `Number ${count(told.rank)} of ${count(told.about.clients)}, most owed first`,
      told.forfeited > 0 && `Forfeited above the cap: ${turns(told.forfeited)}`),
    card('Mean time', seconds(told.mean_seconds), told.reliability != null && `Reliability ${share(told.reliability)}`),
    card('Was there in', told.volunteered == null ? '–' : `${count(told.volunteered)} rounds`,
      told.joined ? ['Joined after round ', count(told.joined)] : 'There from the start', ['Last turn in round ', roundLink(told.last_round)]));
}

const figures = (why) =>
  [
    ['Its time', seconds(why.seconds)], ['Owed', turns(why.owed)], ['Slowest counted on', seconds(why.threshold)],
    ['Objective', turns(why.objective)], ['Margin', turns(why.margin)], ['Turns it lacked', turns(why.missing_turns)],
    ['Earned in', why.rounds_until == null ? '–' : `${count(why.rounds_until)} rounds`],
    ['Round longer by', seconds(why.longer)], ['Which is worth', turns(why.worth)],
  ].filter(([, value]) => value !== '–');

function reason(why) {
  return [
    h('p', null, badge(why.standing === 'chosen' ? 'ok' : 'none', why.standing), ' ',
      why.exact ? badge('ok', 'exact') : badge('warn', 'not exact'), ' ',
      h('span', { class: 'muted' },
        why.exact
          ? 'The choice was made again, and came out as recorded.'
          : 'Told from what is on record; the choice could not be made again.')),
    h('p', { class: 'sentence large' }, why.sentence), facts(figures(why)),
    why.instead?.length > 0 &&
      h('p', null, why.standing === 'chosen' ? 'Who would come instead: ' : 'Whose place it would take: ',
        why.instead.slice(0, 12).map((id, place) => [place > 0 && ', ', clientLink(id, { round: why.round })])),
  ];
}

function why(told, slot, round) {
  const { rounds } = told.about;
  const to = (wanted) => steer.go({ round: Math.min(Math.max(1, wanted), rounds) });
  return h(
    'section', { class: 'card', id: 'why' }, h('h2', null, `Why was it chosen in round ${count(round)}, or why not?`),
    h('div', { class: 'pager', role: 'group', 'aria-label': 'Step through rounds' },
      h('button', { type: 'button', disabled: round <= 1, onclick: () => to(round - 1) }, '← Previous'),
      h('button', { type: 'button', disabled: round >= rounds, onclick: () => to(round + 1) }, 'Next →'),
      h('button', { type: 'button', onclick: () => to(rounds) }, 'Newest'),
      h('label', null, 'Round ',
        h('input', {
          type: 'number', min: 1, max: rounds, value: round, onchange: (event) => to(Number(event.target.value) || 1),
        })),
      h('span', { class: 'muted' }, `of ${count(rounds)}`)),
    slot?.waiting && muted('Going back to that round; on long runs this takes some seconds.'), answer(slot, reason));
}

const one = (told, slots, settings) => [
  [...told.id].length > 40 && h('p', { class: 'whole-id' }, h('bdi', null, told.id)), flagLegend([told]), numbers(told),
  told.next && box('Next turn', h('p', { class: 'sentence' }, told.next)),
  told.about.rounds > 0 && why(told, slots.explain, Number(settings.round ?? told.about.rounds)), strip(told, told),
  charts(times(told, told),
    told.debts &&
      chart({
        id: 'client-debts', from: told, title: 'Is its debt paid?',
        read: 'Turns it was owed after each round: it climbs while it waits, and falls by one with each turn.',
        traces: (c) => [
          line(told.debts.x, told.debts.owed, 'owed', c.accent, {
            mode: 'lines', line: { shape: 'hv' }, hovertemplate: 'round %{x:,d}: %{y:.2f} turns<extra></extra>',
          }),
        ],
        layout: () => ({ xaxis: roundAxis, yaxis: { title: 'turns owed', rangemode: 'tozero' }, showlegend: false }),
      })),
  h('p', null, h('a', { href: steer.address('client') }, 'Another client')),
];

export default {
  name: 'client', label: 'Client', about: ['id'],
  title: ({ id }) => (id == null ? 'Find a client' : `Client ${short(id, 40)}`),
  asks(settings, { client }) {
    if (settings.id == null) return { clients: clientsWanted(settings) };
    const round = settings.round ?? client?.data?.about.rounds;
    return {
      client: { id: settings.id },
      ...(client?.data && round > 0 ? { explain: { id: settings.id, round, fixed: true } } : {}),
    };
  },
  view: (slots, settings) => settings.id == null
      ? box('Those most behind, or whom you look for',
          answer(slots.clients, (told) => clientsTable(told, settings.search)))
      : answer(slots.client, (told) => one(told, slots, settings)),
  /** The newest round is pinned when the page is opened: an explanation does not run away while it is read. */
  drawn: ({ client }, settings) => {
    if (client?.data && settings.id != null && !settings.round && client.data.about.rounds > 0)
      steer.go({ round: client.data.about.rounds }, { replace: true });
  },
  step(by, { client }, settings) {
    const next = Number(settings.round) + by;
    if (client?.data && next >= 1 && next <= client.data.about.rounds) steer.go({ round: next });
  },
};
