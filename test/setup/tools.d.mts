export interface Tool {
  readonly tier: 'basic' | 'system';
  readonly what: string;
  readonly pack: string;
  readonly commands: readonly string[];
  readonly module?: string;
}
export const TOOLS: Readonly<Record<string, Tool>>;
export function commandOf(name: string): string | undefined;
export function howToInstall(name: string): string;
