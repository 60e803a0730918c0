/**
 * Refuses `npm publish` of a package that is not ready for it: npm runs this as `prepublishOnly`.
 *
 * The addresses of the project are in no file until it has one; a package without them cannot be traced to its source.
 */

import { readFileSync } from 'node:fs';

const manifest = JSON.parse(readFileSync('package.json', 'utf8'));
const changelog = readFileSync('CHANGELOG.md', 'utf8');

const ADDRESSES = {
  repository: manifest.repository?.url,
  homepage: manifest.homepage,
  bugs: manifest.bugs?.url,
};

const isAddress = (value) =>
  typeof value === 'string' && /^(?:git\+)?https:\/\/[^/]+\.[^/]+\/./.test(value);

const problems = [];
for (const [field, value] of Object.entries(ADDRESSES))
  if (!isAddress(value)) {
    const path = field === 'homepage' ? field : `${field}.url`;
    problems.push(
      `package.json: expected \`${path}\` as an https address, got ${JSON.stringify(value)}: add the address of the project`,
    );
  }

const heading = changelog.split('\n').find((line) => line.startsWith('## ')) ?? '';
const [version, day = ''] = heading.slice('## '.length).split(', ');
if (version !== manifest.version || !/^\d{4}-\d\d-\d\d$/.test(day))
  problems.push(
    `CHANGELOG.md: expected \`## ${manifest.version}, YYYY-MM-DD\` as its first section, got \`${heading}\`: write the day of the release`,
  );

for (const problem of problems) console.error(problem);
if (problems.length > 0) process.exit(1);
