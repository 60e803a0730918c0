export function attack(options: { readonly rounds: number; readonly seed: number }): Promise<{
  readonly rejected: number;
  readonly allowed: number;
  readonly failedOpen: number;
}>;
