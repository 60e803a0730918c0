/** Other daemons and servers: peers, the pool, groups. */

import type { ComponentChildren } from 'preact';
import type { Groups, Peer, Peers, Pool } from './api.ts';
import { duration, minuteTime, percent, short } from './format.ts';
import { Badge, Section, Table } from './parts.tsx';

/** A peer sends at least once a second. */
const STALE_MS = 3000;

export function Fleet(props: {
  readonly peers: Peers;
  readonly pool: Pool;
  readonly groups: Groups;
  /** The daemon's time. */
  readonly at: number;
}) {
  const { peers, pool, groups, at } = props;
  const parts = [
    peers.name !== undefined && <PeerList key="peers" {...peers} at={at} />,
    pool.id !== undefined && <PoolMembers key="pool" {...pool} />,
    groups.id !== undefined && <GroupList key="groups" {...groups} />,
  ].filter((part) => part !== false);
  return (
    <Section id="fleet" title="Fleet">
      {parts.length > 0 ? (
        parts
      ) : (
        <p class="empty">This daemon has no peers, no pool and no groups: it decides alone.</p>
      )}
    </Section>
  );
}

function PeerList({
  name,
  transport,
  isOpen,
  peers,
  gone = [],
  rejected = [],
  at,
}: Peers & { readonly at: number }) {
  const present = peers.map((peer) =>
    peerRow(
      peer,
      peer.ageMs > STALE_MS ? <Badge kind="bad">silent</Badge> : <Badge kind="good">present</Badge>,
    ),
  );
  const silent = gone.map((peer) =>
    peerRow(peer, <Badge kind="bad">gone since {minuteTime(at - peer.ageMs)}</Badge>),
  );
  return (
    <>
      <h3>Peers</h3>
      <p class="muted">
        {name}, {transport}
        {isOpen === false && ': the transport is not open, this daemon decides alone'}. Divergence:
        reports of a peer that this daemon does not have.
      </p>
      <Table
        caption="Peers"
        head={['peer', 'state', 'age', 'reports', 'missing', 'lost', 'divergence']}
        rows={[...present, ...silent]}
        empty="No other daemon is present."
        numbersFrom={2}
      />
      {rejected.length > 0 && (
        <Table
          caption="Sources whose datagrams are rejected"
          head={['rejected source', 'reason', 'datagrams', 'age']}
          rows={rejected.map(({ from, reason, datagrams, ageMs }) => [
            from || 'unknown',
            reason,
            short(datagrams),
            duration(ageMs),
          ])}
          empty=""
          numbersFrom={2}
        />
      )}
    </>
  );
}

function peerRow(peer: Peer, state: ComponentChildren): ComponentChildren[] {
  const { name, ageMs, reportsReceived, missing, lost } = peer;
  const behind = missing + lost;
  const all = reportsReceived + behind;
  return [
    name,
    state,
    duration(ageMs),
    short(reportsReceived),
    short(missing),
    short(lost),
    all === 0 ? '–' : percent(behind / all),
  ];
}

function PoolMembers({
  name,
  store,
  id,
  size = 0,
  active,
  isAgreed,
  isAvailable,
  ageMs,
  ...rest
}: Pool) {
  const { members = [], saturation = {}, reason } = rest;
  return (
    <>
      <h3>Pool</h3>
      <p class="muted">
        {name}, {store}: {active} active,{' '}
        {isAgreed ? 'all agree on the size' : 'the members do not agree on the size yet'}. {id} has{' '}
        {size === 0 ? 'no part' : `1 of ${size}`}. Last reply of the store: {duration(ageMs)} ago.{' '}
        <Badge kind={isAvailable ? 'good' : 'bad'}>
          store {isAvailable ? 'reachable' : 'unavailable'}
        </Badge>{' '}
        {reason}
      </p>
      <Table
        caption="Members of the pool"
        head={['member', 'size', 'rank', 'last sync']}
        rows={members.map((member) => [
          member.id,
          member.size,
          member.rank < 0 ? '–' : member.rank,
          `${duration(member.ageMs)} ago`,
        ])}
        empty="The store lists no member."
      />
      <Table
        caption="Used fraction of this member’s part"
        head={['limit', 'used in the last 10 s']}
        rows={Object.entries(saturation).map(([limit, used]) => [limit, percent(used)])}
        empty=""
      />
    </>
  );
}

function GroupList({ id, fraction = 0, lent, others }: Groups) {
  return (
    <>
      <h3>Groups</h3>
      <p class="muted">
        {id} has {percent(fraction)} of its limits, and lent {short(lent)} to other groups. It asks
        another group when its own tokens run low.
      </p>
      <Table
        caption="Groups"
        head={['group', 'state', 'borrowed', 'requests', 'failed']}
        rows={others.map(({ group, borrowed, requests, failures, reason }) => [
          group,
          reason !== undefined ? (
            <Badge kind="bad">unavailable: {reason}</Badge>
          ) : requests === 0 ? (
            <Badge kind="plain">not tried yet</Badge>
          ) : (
            <Badge kind="good">reachable</Badge>
          ),
          short(borrowed),
          short(requests),
          short(failures),
        ])}
        empty="There is no other group."
        numbersFrom={2}
      />
    </>
  );
}
