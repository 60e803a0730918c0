/** The playground: two limits on the same traffic, simulated in the browser by the limiter of the library itself. */

import { useEffect, useRef, useState } from 'preact/hooks';
import { EXAMPLES } from '../../../src/simulator/playground/examples.ts';
import type { Settings } from '../../../src/simulator/playground/fields.ts';
import { limitOf, type Side } from '../../../src/simulator/playground/limits.ts';
import { capacityOf } from '../../../src/simulator/playground/server.ts';
import {
  changeSetting,
  fieldGroups,
  linkOf,
  type ReadSettings,
  readLink,
} from '../../../src/simulator/playground/settings.ts';
import { ruleText, short } from '../format.ts';
import { Section } from '../parts.tsx';
import { SettingGroup } from './form.tsx';
import { Results } from './results.tsx';
import { useRun } from './use-run.ts';

/** Browsers refuse to change the address more often. */
const LINK_REST_MS = 300;

/** Names in the fragment that belong to the page around the playground. */
const OF_PAGE = ['view', 'span', 'limit', 'key'];

/** The settings of the address; without any, those of the first example. */
function readAddress(): ReadSettings {
  const fragment = location.hash.slice(1);
  const isEmpty = [...new URLSearchParams(fragment).keys()].every((name) => OF_PAGE.includes(name));
  return isEmpty && EXAMPLES[0] ? readLink(EXAMPLES[0].link) : readLink(fragment, OF_PAGE);
}

/** Settings from the fragment of the address, and back to it when they change. */
function useSettings(prefix: string): [ReadSettings, (settings: Settings) => void, string] {
  const [read, setRead] = useState(readAddress);
  const link = `#${prefix}${linkOf(read.settings)}`;
  const own = useRef(link);
  useEffect(() => {
    const onChange = (): void => {
      if (location.hash !== own.current) setRead(readAddress());
    };
    addEventListener('hashchange', onChange);
    return () => removeEventListener('hashchange', onChange);
  }, []);
  const isFirst = useRef(true);
  useEffect(() => {
    if (isFirst.current) {
      isFirst.current = false; // an address without settings stays short until one changes
      return;
    }
    const timer = setTimeout(() => {
      own.current = link;
      history.replaceState(undefined, '', link);
    }, LINK_REST_MS);
    return () => clearTimeout(timer);
  }, [link]);
  return [read, (settings) => setRead({ settings, problems: [] }), link];
}

/** The limit as the library and a configuration file have it. */
function ruleOf(settings: Settings, side: Side): string {
  try {
    const limit = limitOf(settings, side);
    return limit ? ruleText(limit) : 'no limit';
  } catch {
    return 'invalid';
  }
}

/** On a phone the settings would fill several screens before the first chart. */
const isWide = (): boolean => matchMedia('(min-width: 50rem)').matches;

export function Playground({ prefix = '', file }: { prefix?: string; file?: string }) {
  const [{ settings, problems }, setSettings, link] = useSettings(prefix);
  const [copied, setCopied] = useState('');
  const { result, settings: ran, progress, problem } = useRun(settings);
  const groups = fieldGroups(settings);
  const [isOpen] = useState(isWide);
  const example = EXAMPLES.find(
    (each) => linkOf(readLink(each.link).settings) === linkOf(settings),
  );
  const onChange = (name: string, value: number | string): void => {
    setCopied('');
    setSettings(changeSetting(settings, name, value));
  };
  const copy = async (): Promise<void> => {
    const address = location.href.replace(/#.*$/, '') + link;
    await navigator.clipboard.writeText(address).then(
      () => setCopied('Copied a link with all settings.'),
      () => setCopied('The address of this page has all settings: copy it from there.'),
    );
  };
  const common = { settings, onChange };
  return (
    <Section
      id="playground"
      title="Playground"
      note="Two limits get the same calls, each in front of the same server. The limiter of this library runs here in the browser, on virtual time. Nothing is sent."
    >
      {problems.length > 0 && (
        <div class="problem" role="alert">
          The link has settings that cannot be used:
          <ul>
            {problems.map((each) => (
              <li key={each}>{each}</li>
            ))}
          </ul>
        </div>
      )}
      <div class="search">
        <label for="example">Example</label>
        <select
          id="example"
          value={example?.title ?? ''}
          onChange={({ currentTarget }) => {
            const chosen = EXAMPLES.find(({ title }) => title === currentTarget.value);
            setCopied('');
            setSettings(readLink(chosen?.link ?? '').settings);
          }}
        >
          <option value="">own settings</option>
          {EXAMPLES.map(({ title }) => (
            <option key={title}>{title}</option>
          ))}
        </select>
        <button type="button" onClick={() => void copy()}>
          Copy link
        </button>
        {file !== undefined && (
          <a class="button" href={file} download>
            Download as one file
          </a>
        )}
        <span role="status" class="muted">
          {copied}
        </span>
      </div>
      {example && <p class="muted">{example.shows}</p>}
      <div class="groups">
        <SettingGroup
          title="Traffic"
          kind=""
          isOpen={isOpen}
          note="Calls of all clients together; refused calls are not retried. The same seed gives the same result."
          fields={{ ...groups.traffic, ...groups.run }}
          {...common}
        />
        <SettingGroup title="Limit A" kind="side-a" isOpen fields={groups.a} {...common} />
        <SettingGroup title="Limit B" kind="side-b" isOpen={isOpen} fields={groups.b} {...common} />
        <SettingGroup
          title="Server"
          kind=""
          isOpen={isOpen}
          note={`Capacity: ${short(capacityOf(settings))} calls a second.`}
          fields={groups.server}
          {...common}
        />
      </div>
      {problem !== undefined && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      <p class="muted run-state" aria-live="polite">
        <b class="side-a">A</b> {ruleOf(settings, 'a')} <b class="side-b">B</b>{' '}
        {ruleOf(settings, 'b')}
        {result?.isCut && '. Too many calls: only the first 200,000 are simulated'}
      </p>
      <progress
        class={progress === undefined ? 'idle' : ''}
        max={1}
        value={progress ?? 1}
        aria-label="Simulation"
      />
      {result && ran && <Results result={result} settings={ran} />}
    </Section>
  );
}
