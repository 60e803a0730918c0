/** The files of the repository that are counted: by git, or by a walk where git does not know them. */

import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { isCounted, type Texts } from './counts.ts';

const listed = (...options: string[]): string[] => {
  try {
    const args = ['ls-files', '-z', ...options];
    return execFileSync('git', args, { encoding: 'utf8', maxBuffer: 1e8, stdio: 'pipe' })
      .split('\0')
      .filter(isCounted);
  } catch {
    return []; // no git, or no checkout
  }
};

const walked = (): string[] =>
  ['.', 'src', 'test', 'docs', 'page', 'packages'].filter(existsSync).flatMap((root) =>
    readdirSync(root, { recursive: root !== '.', encoding: 'utf8' })
      .map((path) => (root === '.' ? path : `${root}/${path.replaceAll('\\', '/')}`))
      .filter((path) => isCounted(path) && !/\/(?:node_modules|dist)\//.test(path)),
  );

export interface Repository {
  readonly texts: Texts;
  /** Files that would count if git knew them: the numbers are not final. */
  readonly untracked: readonly string[];
}

export function readRepository(): Repository {
  const tracked = listed();
  const paths = tracked.length > 0 ? tracked.filter((path) => existsSync(path)) : walked();
  return {
    texts: new Map(paths.map((path) => [path, readFileSync(path, 'utf8')])),
    untracked: tracked.length > 0 ? listed('--others', '--exclude-standard') : [],
  };
}
