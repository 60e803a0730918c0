/** Bans and overrides: shown to every operator, set and removed with the admin token. */

import { useState } from 'preact/hooks';
import { type Control, post, RequestError } from './api.ts';
import { duration, ruleText } from './format.ts';
import { Badge, Section, Table } from './parts.tsx';

/** Sends an action, reports its result to the operator, and resolves with whether it succeeded. */
export type ActionRunner = (done: string, path: string, fields: object) => Promise<boolean>;

/** Runs actions and keeps the last result for a status line. */
export function useActions(onDone: () => void): {
  readonly run: ActionRunner;
  readonly message: string;
  readonly isProblem: boolean;
} {
  const [state, setState] = useState({ message: '', isProblem: false });
  const run: ActionRunner = async (done, path, fields) => {
    try {
      const { unsaved } = await post<{ readonly unsaved?: string }>(path, fields);
      const message = unsaved === undefined ? done : `${done} Not saved: ${unsaved}.`;
      setState({ message, isProblem: false });
      onDone();
      return true;
    } catch (error) {
      const message = error instanceof RequestError ? error.message : String(error);
      setState({ message, isProblem: true });
      return false;
    }
  };
  return { run, ...state };
}

const fieldsOf = (form: HTMLFormElement): Record<string, string> =>
  Object.fromEntries(
    [...new FormData(form)].flatMap(([name, value]) =>
      value === '' ? [] : [[name, String(value)]],
    ),
  );

/** A key that reads like a pattern is meant literally, except in a ban. */
const exactKey = (key: string): unknown => (/[*?/]/.test(key) ? { exact: key } : key);

function Field(props: {
  readonly form: string;
  readonly name: string;
  readonly label: string;
  readonly value?: string;
  readonly placeholder?: string;
  readonly isRequired?: boolean;
}) {
  const id = `${props.form}-${props.name}`;
  return (
    <span class="field">
      <label for={id}>{props.label}</label>
      <input
        id={id}
        name={props.name}
        defaultValue={props.value}
        placeholder={props.placeholder}
        required={props.isRequired}
        autocomplete="off"
        spellcheck={false}
      />
    </span>
  );
}

function BanForm({ run, id, name }: { run: ActionRunner; id: string; name?: string }) {
  return (
    <form
      class="action"
      onSubmit={(event) => {
        event.preventDefault();
        const form = event.currentTarget;
        const fields = { ...(name !== undefined && { key: name }), ...fieldsOf(form) };
        void run(`Banned ${(fields as { key?: string }).key}.`, 'ban', fields).then((isDone) => {
          if (isDone) form.reset();
        });
      }}
    >
      <h4>Ban</h4>
      {name === undefined && (
        <Field form={id} name="key" label="Key or pattern" placeholder="ip:192.0.2.*" isRequired />
      )}
      <Field form={id} name="for" label="For" value="1h" isRequired />
      <Field form={id} name="note" label="Note" placeholder="why" />
      <button type="submit" class="danger">
        Ban
      </button>
    </form>
  );
}

function OverrideForm(props: {
  readonly run: ActionRunner;
  readonly id: string;
  readonly name?: string;
  readonly limits: readonly string[];
}) {
  const { run, id, name, limits } = props;
  return (
    <form
      class="action"
      onSubmit={(event) => {
        event.preventDefault();
        const form = event.currentTarget;
        const { burst, key = name ?? '', ...rest } = fieldsOf(form);
        const fields = {
          ...rest,
          key: exactKey(key),
          ...(burst !== undefined && { burst: Number(burst) }),
        };
        void run(`Set an override for ${key}.`, 'override', fields).then((isDone) => {
          if (isDone) form.reset();
        });
      }}
    >
      <h4>Override</h4>
      {name === undefined && <Field form={id} name="key" label="Key" isRequired />}
      <span class="field">
        <label for={`${id}-limit`}>Limit</label>
        <select id={`${id}-limit`} name="limit">
          <option value="">most specific</option>
          {limits.map((limit) => (
            <option key={limit}>{limit}</option>
          ))}
        </select>
      </span>
      <Field form={id} name="rate" label="Rate" placeholder="100/s" isRequired />
      <Field form={id} name="burst" label="Burst" placeholder="200" />
      <Field form={id} name="for" label="For" value="1d" isRequired />
      <Field form={id} name="note" label="Note" placeholder="why" />
      <button type="submit">Set override</button>
    </form>
  );
}

/** The actions on one key. */
export function KeyActions(props: {
  readonly name: string;
  readonly run: ActionRunner;
  readonly limits: readonly string[];
}) {
  const { name, run } = props;
  const limits = [...new Set(props.limits.map((limit) => limit.split('[', 1)[0] ?? limit))];
  return (
    <div class="actions">
      <BanForm run={run} id="key-ban" name={name} />
      <OverrideForm run={run} id="key-override" name={name} limits={limits} />
      <div class="action">
        <h4>Reset</h4>
        <p class="muted">Forgets what the key has consumed.</p>
        <button
          type="button"
          onClick={() => void run(`Reset ${name}.`, 'reset', { key: exactKey(name) })}
        >
          Reset
        </button>
      </div>
    </div>
  );
}

function remove({ kind, key, bytes, limit }: Control, run: ActionRunner): void {
  const named = bytes === undefined ? key : { bytes };
  if (kind === 'ban') void run(`Removed the ban of ${key}.`, 'unban', { key: named });
  else
    void run(`Removed the override of ${key}.`, 'remove-override', {
      key: bytes === undefined ? exactKey(key) : named,
      ...(limit !== undefined && { limit }),
    });
}

export function Controls(props: {
  readonly controls: readonly Control[];
  readonly limits: readonly string[];
  readonly now: number;
  /** True if the daemon has no token: then the page offers no action. */
  readonly isReadOnly: boolean;
  readonly actions: ActionRunner | undefined;
}) {
  const { controls, limits, now, isReadOnly, actions } = props;
  const shown = controls.filter(({ kind }) => kind !== 'reset');
  const rows = shown.map((control) => [
    <code>{control.key}</code>,
    <>
      <Badge kind={control.kind === 'ban' ? 'bad' : 'plain'}>{control.kind}</Badge>{' '}
      {control.rule !== undefined && ruleText(control.rule)}
    </>,
    control.limit ?? 'all limits',
    control.note ?? '',
    <span title={control.until}>in {duration(Math.max(0, Date.parse(control.until) - now))}</span>,
    ...(actions
      ? [
          <button
            type="button"
            aria-label={`Remove the ${control.kind} of ${control.key}`}
            onClick={() => remove(control, actions)}
          >
            Remove
          </button>,
        ]
      : []),
  ]);
  return (
    <Section id="controls" title="Bans and overrides">
      <Table
        caption="Bans and overrides"
        head={['key', 'control', 'limit', 'note', 'ends', ...(actions ? ['action'] : [])]}
        rows={rows}
        empty="None is in effect."
        numbersFrom={9}
      />
      {isReadOnly && (
        <p class="muted">
          The page is read-only: set <code>admin.token</code> in the configuration to ban keys and
          set overrides here.
        </p>
      )}
      {actions && (
        <div class="actions">
          <BanForm run={actions} id="ban" />
          <OverrideForm run={actions} id="override" limits={limits} />
        </div>
      )}
    </Section>
  );
}
