/** Small parts that all sections use. */

import type { ComponentChildren } from 'preact';
import { percent } from './format.ts';

export function Section(props: {
  readonly id: string;
  readonly title: string;
  readonly note?: ComponentChildren;
  readonly children: ComponentChildren;
}) {
  return (
    <section id={props.id} tabIndex={-1} aria-labelledby={`${props.id}-title`}>
      <h2 id={`${props.id}-title`}>{props.title}</h2>
      {props.note && <p class="muted">{props.note}</p>}
      {props.children}
    </section>
  );
}

/** Rows of cells. Columns from `numbersFrom` on are numbers. A wide table scrolls by itself, also with the keyboard. */
export function Table(props: {
  readonly caption: string;
  readonly head: readonly string[];
  readonly rows: readonly (readonly ComponentChildren[])[];
  readonly empty: string;
  readonly numbersFrom?: number;
}) {
  const { caption, head, rows, empty, numbersFrom = 1 } = props;
  const isNumber = (n: number): string => (n >= numbersFrom ? 'number' : '');
  if (rows.length === 0) return <p class="empty">{empty}</p>;
  return (
    <section class="scroll" aria-label={caption} tabIndex={0}>
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>
            {head.map((text, n) => (
              <th scope="col" class={isNumber(n)} key={text}>
                {text}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((cells, row) => (
            <tr key={row}>
              {cells.map((cell, n) =>
                n === 0 ? (
                  <th scope="row" key={n}>
                    {cell}
                  </th>
                ) : (
                  <td class={isNumber(n)} key={n}>
                    {cell}
                  </td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

/** A used fraction as a bar with its number; undefined: unknown. */
export function Use({
  value,
  label,
}: {
  readonly value: number | null | undefined;
  label: string;
}) {
  if (value === null || value === undefined) return <span class="muted">–</span>;
  const level = value >= 0.95 ? 'high' : value >= 0.75 ? 'mid' : 'low';
  return (
    <span class="use">
      <meter class={level} min={0} max={1} value={value} aria-label={label} />
      {percent(value)}
    </span>
  );
}

export function Badge(props: {
  readonly kind: 'good' | 'bad' | 'plain';
  readonly children: ComponentChildren;
}) {
  return <span class={`badge ${props.kind}`}>{props.children}</span>;
}

/** Longer keys are cut in lists. */
const MAX_KEY_CHARS = 40;

const cut = (key: string): string =>
  key.length > MAX_KEY_CHARS ? `${key.slice(0, MAX_KEY_CHARS - 1)}…` : key || '""';

/** A key that can be looked at. */
export function KeyLink(props: { readonly name: string; readonly onOpen: (key: string) => void }) {
  return (
    <button type="button" class="link" title={props.name} onClick={() => props.onOpen(props.name)}>
      {cut(props.name)}
    </button>
  );
}

/** A choice of one among a few. */
export function Choice<T extends string>(props: {
  readonly label: string;
  readonly options: readonly (readonly [T, string])[];
  readonly value: T;
  readonly onChange: (value: T) => void;
}) {
  return (
    <fieldset class="choice">
      <legend class="hidden">{props.label}</legend>
      {props.options.map(([value, text]) => (
        <button
          type="button"
          key={value}
          aria-pressed={value === props.value}
          onClick={() => props.onChange(value)}
        >
          {text}
        </button>
      ))}
    </fieldset>
  );
}
