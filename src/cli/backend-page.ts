import { toPrintableLine } from '../core/printable.ts';
import type { BackendPage, TextTable } from '../daemon/backends/registry.ts';
import { alignColumns } from './chart/table.ts';
import { ADMIN_FLAGS, ADMIN_FLAGS_HELP, fetchPage } from './framework/admin-client.ts';
import { type Command, EXIT_OK, readFlags, SWITCH } from './framework/command.ts';

export const backendPageCommand = (name: string, page: BackendPage): Command => ({
  help: `usage: sluice ${name} [options]

${page.description}

options:
${ADMIN_FLAGS_HELP}
  --json         the whole page as JSON

The admin token, if the daemon has one, comes from $SLUICE_ADMIN_TOKEN.

example:
  sluice ${name} --at 127.0.0.1:7612`,

  async run(args, terminal) {
    const flags = readFlags(args, { ...ADMIN_FLAGS, json: SWITCH });
    const view = (await fetchPage(`/${name}`, flags)) as { readonly id?: unknown };
    if (flags.json) terminal.print(JSON.stringify(view, undefined, 2));
    else if (view.id === undefined) terminal.print(page.emptyMessage);
    else {
      for (const line of page.render(view).flatMap(printableLines)) terminal.print(line);
    }
    return EXIT_OK;
  },
});

function printableLines(part: string | TextTable): string[] {
  if (typeof part === 'string') return [toPrintableLine(part)];
  const rows = part.map((row) => row.map(toPrintableLine));
  return alignColumns(rows, '  ', 1).map((line) => `  ${line}`);
}
