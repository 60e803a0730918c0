/**
 * Bundles dist/standalone/sluice.cjs: command, daemon, worker scripts, page and licences in one file that needs only Node.
 *
 * The file is CommonJS, because the script of a single executable has to be. The clients of Redis and NATS are in
 * it, unlike in the package: there is no project whose own clients it could use. The build of the package comes first,
 * as its page is part of the file.
 */

import { mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { rolldown } from 'rolldown';
import { asciiOnly, COMMENTS, toAscii } from './bundles.mjs';
import { licencesOf } from './licences.mjs';

export const FOLDER = 'dist/standalone';
export const SCRIPT = `${FOLDER}/sluice.cjs`;
export const LICENCES = `${FOLDER}/THIRD-PARTY-LICENSES.txt`;

/** Loaded by dependencies where it is installed; not a part of the daemon. */
const OPTIONAL = [/^@opentelemetry\/api$/, /^@node-rs\/xxhash$/];

/** The module that takes the place of src/daemon/files/embedded.ts. */
function embeddedModule() {
  const { version } = JSON.parse(readFileSync('package.json', 'utf8'));
  const names = readdirSync('dist/page');
  const page = Object.fromEntries(
    names.map((name) => [name, readFileSync(`dist/page/${name}`, 'utf8')]),
  );
  return `export const EMBEDDED = ${JSON.stringify({ version, page })};`;
}

const embed = {
  name: 'embed-files',
  load: (id) => (/\/daemon\/files\/embedded\.ts$/.test(id) ? embeddedModule() : null),
};

/** The licences of the packages in the bundle and in the page. */
function licenceText(output) {
  const intro = 'sluice.cjs contains code of these packages.';
  const own = licencesOf(output, intro);
  const page = readFileSync('dist/THIRD-PARTY-LICENSES.txt', 'utf8').split(/^-{80}$/m);
  const known = new Set(own.split(/^-{80}$/m).map((text) => text.trim()));
  const more = page.slice(1).filter((text) => !known.has(text.trim()));
  return [own, ...more.map((text) => `\n${'-'.repeat(80)}${text}`)].join('');
}

export async function bundleStandalone() {
  const bundled = await rolldown({
    input: { sluice: 'src/cli/standalone.ts' },
    external: [/^node:/, ...OPTIONAL],
    platform: 'node',
    plugins: [embed, asciiOnly],
    treeshake: { moduleSideEffects: (id) => /node_modules|\/src\/(?:cli|daemon)\//.test(id) },
    logLevel: 'warn',
  });
  const { output } = await bundled.generate({
    format: 'cjs',
    codeSplitting: false,
    comments: COMMENTS,
  });
  await bundled.close();
  mkdirSync(FOLDER, { recursive: true });
  const licences = licenceText(output);
  const comment = toAscii(licences.replaceAll('*/', '* /'));
  writeFileSync(LICENCES, licences);
  const unfinished = `${SCRIPT}.unfinished`;
  writeFileSync(unfinished, `${output[0].code}\n/*\n${comment}*/\n`, { mode: 0o755 });
  renameSync(unfinished, SCRIPT); // a daemon that is starting never reads half a file
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  process.chdir(new URL('..', import.meta.url).pathname);
  await bundleStandalone();
  console.log(`${SCRIPT} is built: \`node ${SCRIPT} serve\` starts the daemon.`);
}
