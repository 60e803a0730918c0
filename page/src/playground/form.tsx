/** The settings of the playground: a slider and a number for each, choices and texts. */

import { useEffect, useState } from 'preact/hooks';
import {
  type Field,
  type Fields,
  type NumberField,
  parseField,
  type Settings,
  type TextField,
} from '../../../src/simulator/playground/fields.ts';

export type OnChange = (name: string, value: number | string) => void;

interface FieldProps<F extends Field> {
  readonly name: string;
  readonly field: F;
  readonly value: number | string;
  readonly onChange: OnChange;
}

/** Positions of a slider. */
const POSITIONS = 200;

/** The value at a position of the slider, on the grid of the field. */
function valueAt({ min, max, step, isLogarithmic }: NumberField, position: number): number {
  const part = position / POSITIONS;
  const value = isLogarithmic && min > 0 ? min * (max / min) ** part : min + part * (max - min);
  const onGrid = Math.round(value / step) * step;
  return Number(Math.min(max, Math.max(min, onGrid)).toFixed(6));
}

function positionOf({ min, max, isLogarithmic }: NumberField, value: number): number {
  const part =
    isLogarithmic && min > 0
      ? Math.log(value / min) / Math.log(max / min)
      : (value - min) / (max - min);
  return Math.round(part * POSITIONS);
}

/** The next position that has another value: small values of a logarithmic slider span many positions. */
function positionAfter(field: NumberField, value: number, by: 1 | -1): number {
  let position = positionOf(field, value);
  do position += by;
  while (position > 0 && position < POSITIONS && valueAt(field, position) === value);
  return position;
}

const STEPS: Readonly<Record<string, 1 | -1>> = {
  ArrowUp: 1,
  ArrowRight: 1,
  ArrowDown: -1,
  ArrowLeft: -1,
};

function NumberInput({ name, field, value, onChange }: FieldProps<NumberField>) {
  const [typed, setTyped] = useState<string>();
  const id = `setting-${name}`;
  const { label, unit, min, max, step, hint } = field;
  const position = positionOf(field, value as number);
  const isInvalid = typed !== undefined && parseField(field, typed) === undefined;
  return (
    <div class="setting">
      <label for={id}>{label}</label>
      <span class="amount">
        <input
          id={id}
          type="number"
          inputMode="decimal"
          {...{ min, max, step }}
          value={typed ?? value}
          aria-invalid={isInvalid}
          aria-describedby={hint === undefined ? undefined : `${id}-hint`}
          onInput={({ currentTarget }) => {
            const parsed = parseField(field, currentTarget.value);
            setTyped(currentTarget.value);
            if (parsed !== undefined) onChange(name, parsed);
          }}
          onBlur={() => setTyped(undefined)}
        />
        {unit && <span class="unit">{unit}</span>}
      </span>
      <input
        type="range"
        min={0}
        max={POSITIONS}
        value={position}
        aria-label={`${label}, slider`}
        aria-valuetext={`${value} ${unit}`.trim()}
        onKeyDown={(event) => {
          const by = STEPS[event.key];
          if (by === undefined) return;
          event.preventDefault();
          const next = positionAfter(field, value as number, by);
          onChange(name, valueAt(field, Math.min(POSITIONS, Math.max(0, next))));
        }}
        onInput={({ currentTarget }) => onChange(name, valueAt(field, Number(currentTarget.value)))}
      />
      <Hint id={id} text={hint} />
    </div>
  );
}

const Hint = ({ id, text }: { id: string; text: string | undefined }) =>
  text === undefined ? null : (
    <p class="hint" id={`${id}-hint`}>
      {text}
    </p>
  );

function TextInput({ name, field, value, onChange }: FieldProps<TextField>) {
  const [typed, setTyped] = useState(String(value));
  useEffect(() => setTyped(String(value)), [value]);
  const id = `setting-${name}`;
  return (
    <div class="setting">
      <label for={id}>{field.label}</label>
      <textarea
        id={id}
        rows={5}
        maxLength={field.maxChars}
        spellcheck={false}
        value={typed}
        aria-describedby={`${id}-hint`}
        onInput={({ currentTarget }) => {
          setTyped(currentTarget.value);
          onChange(name, currentTarget.value);
        }}
      />
      <Hint id={id} text={field.hint} />
    </div>
  );
}

function Setting({ name, field, value, onChange }: FieldProps<Field>) {
  if (field.kind === 'number') return <NumberInput {...{ name, field, value, onChange }} />;
  if (field.kind === 'text') return <TextInput {...{ name, field, value, onChange }} />;
  const id = `setting-${name}`;
  return (
    <div class="setting choice-of">
      <label for={id}>{field.label}</label>
      <select
        id={id}
        value={value}
        onChange={({ currentTarget }) => onChange(name, currentTarget.value)}
      >
        {Object.entries(field.options).map(([option, text]) => (
          <option key={option} value={option}>
            {text}
          </option>
        ))}
      </select>
    </div>
  );
}

/** A group of settings that can be folded. */
export function SettingGroup(props: {
  readonly title: string;
  readonly kind: string;
  readonly isOpen: boolean;
  readonly note?: string;
  readonly fields: Fields;
  readonly settings: Settings;
  readonly onChange: OnChange;
}) {
  const { title, kind, isOpen, note, fields, settings, onChange } = props;
  return (
    <details class={`settings ${kind}`} open={isOpen}>
      <summary>
        <h3>{title}</h3>
      </summary>
      <fieldset>
        <legend class="hidden">{title}</legend>
        {Object.entries(fields).map(([name, field]) => (
          <Setting
            key={name}
            {...{ name, field, onChange }}
            value={settings[name] ?? field.initial}
          />
        ))}
        {note && <p class="hint">{note}</p>}
      </fieldset>
    </details>
  );
}
