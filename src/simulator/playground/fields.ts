/** A setting of the playground as data: its form, its bounds in a link and its default have one source. */

import { preview } from '../../core/errors.ts';

interface FieldText {
  readonly label: string;
  /** One sentence, for a setting that its label does not explain. */
  readonly hint?: string;
}

export interface NumberField extends FieldText {
  readonly kind: 'number';
  readonly unit: string;
  readonly min: number;
  readonly max: number;
  readonly step: number;
  readonly initial: number;
  /** Equal steps of the slider multiply the value. */
  readonly isLogarithmic?: true;
}

export interface ChoiceField extends FieldText {
  readonly kind: 'choice';
  /** Text by value. */
  readonly options: Readonly<Record<string, string>>;
  readonly initial: string;
}

export interface TextField extends FieldText {
  readonly kind: 'text';
  readonly maxChars: number;
  readonly initial: string;
}

export type Field = NumberField | ChoiceField | TextField;
export type Fields = Readonly<Record<string, Field>>;

export type Settings = Readonly<Record<string, number | string>>;

export const number = (
  label: string,
  unit: string,
  [min, max, step]: readonly [number, number, number],
  initial: number,
  more: Pick<NumberField, 'hint' | 'isLogarithmic'> = {},
): NumberField => ({ kind: 'number', label, unit, min, max, step, initial, ...more });

export const choice = (
  label: string,
  options: Readonly<Record<string, string>>,
  initial: string,
): ChoiceField => ({ kind: 'choice', label, options, initial });

/** Digits that a setting can need. */
const NUMBER = /^\d{1,9}(?:\.\d{1,6})?$/;

/** The value of a text; undefined if it is invalid. */
export function parseField(field: Field, text: string): number | string | undefined {
  if (field.kind === 'choice') return Object.hasOwn(field.options, text) ? text : undefined;
  if (field.kind === 'text') return text.length <= field.maxChars ? text : undefined;
  const value = NUMBER.test(text) ? Number(text) : Number.NaN;
  return value >= field.min && value <= field.max ? value : undefined;
}

/** The expected values of a field, for an error. */
export function expectedOf(field: Field): string {
  if (field.kind === 'choice') return `one of ${Object.keys(field.options).join(', ')}`;
  if (field.kind === 'text') return `at most ${field.maxChars} characters`;
  return `a number from ${field.min} to ${field.max}`;
}

/** The error of a setting that is ignored. */
export const fieldProblem = (name: string, field: Field, text: string): string =>
  `${name}: expected ${expectedOf(field)}, got ${preview(text)}; used ${preview(field.initial)} instead`;
