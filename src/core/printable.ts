/**
 * Text for a terminal or a log. Keys and names come from other hosts: characters that move the cursor, clear the screen or
 * set the direction of text become `\uXXXX`. In JSON the escape has the same meaning as the character.
 */

const OBEYED = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

const escapeUnit = (unit: string): string =>
  `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;

const escapeAll = (characters: string): string => characters.split('').map(escapeUnit).join('');

/** A text of several lines: newlines and tabs stay. */
export const toPrintable = (text: string): string =>
  text.replace(OBEYED, (character) =>
    character === '\n' || character === '\t' ? character : escapeAll(character),
  );

/** A key, a name, or a line with one: a newline would begin a line that reads as another entry. */
export const toPrintableLine = (text: string): string => text.replace(OBEYED, escapeAll);
