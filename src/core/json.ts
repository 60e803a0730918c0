/** Parses JSON that a server stored, which may be anything; undefined if it is not JSON. */
export function tryParseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** A string, with the colon behind it if it names a member; or a brace. */
const NAME_OR_BRACE = /"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?|[{}]/g;

/** The first member that an object of a valid JSON text has twice. `JSON.parse` takes the last one and says nothing. */
export function repeatedMember(json: string): string | undefined {
  const names: Set<string>[] = [];
  for (const [token, colon] of json.matchAll(NAME_OR_BRACE)) {
    if (token === '{') names.push(new Set());
    else if (token === '}') names.pop();
    else if (colon !== undefined) {
      const quoted = token.slice(0, -colon.length);
      const name = quoted.includes('\\') ? String(JSON.parse(quoted)) : quoted.slice(1, -1);
      if (names.at(-1)?.has(name)) return name;
      names.at(-1)?.add(name);
    }
  }
  return undefined;
}
