import type { CommandGroup } from '../framework/command.ts';

export const simulate: CommandGroup = {
  fileCommand: {
    name: 'FILE.yaml',
    summary: 'a scenario: clients, nodes, limits, a server, faults, expectations',
    load: async () => (await import('./scenario.ts')).simulateScenario,
  },
  commands: [
    {
      name: 'adaptive',
      summary: 'rules of adaptive concurrency against simulated servers',
      load: async () => (await import('./adaptive.ts')).simulateAdaptive,
    },
    {
      name: 'groups',
      summary: 'one limit over distant regions that borrow from each other',
      load: async () => (await import('./groups.ts')).simulateGroups,
    },
    {
      name: 'peers',
      summary: 'a fleet that shares one limit by gossip, without a server',
      load: async () => (await import('./peers.ts')).simulatePeers,
    },
    {
      name: 'ramp',
      summary: 'a rate limit that grows: the four ramp modes on the same traffic',
      load: async () => (await import('./ramp.ts')).simulateRamp,
    },
    {
      name: 'sweep',
      summary: 'the effect of each option of adaptive concurrency',
      load: async () => (await import('./sweep.ts')).simulateSweep,
    },
    {
      name: 'tchannel',
      summary: 'back-off from a busy service, and two kinds of recovery',
      load: async () => (await import('./tchannel.ts')).simulateTchannel,
    },
  ],
};
