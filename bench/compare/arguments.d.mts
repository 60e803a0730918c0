export const GROUPS: readonly string[];
export const HELP: string;
export class UsageError extends Error {}

export interface CompareOptions {
  readonly isHelp: boolean;
  readonly base?: string;
  readonly groups?: readonly string[];
  readonly rows?: string;
  readonly isShort?: boolean;
  readonly isToWrite?: boolean;
}

export function readArguments(words: readonly string[]): CompareOptions;
