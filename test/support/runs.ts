/**
 * How many random sequences, seeds or inputs a test runs: `npm run test:system` runs more of them, and so does
 * `RUNS=10 npx vitest run FILE`.
 */
export const runs = (count: number): number => Math.ceil(count * Number(process.env.RUNS ?? 1));
