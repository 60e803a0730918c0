import { timingSafeEqual } from 'node:crypto';
import {
  type Arguments,
  type CommandContext,
  type Invocation,
  isAuthorised,
  NOT_AN_INTEGER,
  type RespCommand,
  type Session,
  SYNTAX,
  type WriteReply,
} from './command.ts';
import { encodeReply, type ReplyValue, type RespVersion, SimpleString } from './reply.ts';

export const wrongArity = (name: string): string =>
  `ERR wrong number of arguments for '${name}' command`;

const unknownSubcommand = (args: Arguments): string =>
  `ERR unknown subcommand '${args.text(1).slice(0, 128)}'. Try ${args.text(0).toUpperCase()} HELP.`;

const WRONG_PASSWORD = 'WRONGPASS invalid username-password pair or user is disabled.';
const NO_PASSWORD =
  'ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?';
const HELLO_NOT_AUTHENTICATED =
  'NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time';
const BAD_NAME = 'ERR Client names cannot contain spaces, newlines or special characters.';

/** The user of operators. With another password than the token it is a user like any other. */
const ADMIN_USER = 'admin';

/** In constant time, so timing reveals nothing about the secret. */
function isEqual(secret: string, given: Buffer): boolean {
  const expected = Buffer.from(secret);
  const compared = Buffer.alloc(expected.length);
  given.copy(compared);
  return timingSafeEqual(compared, expected) && given.length === expected.length;
}

type Login = Required<Pick<Session, 'isAuthenticated' | 'adminToken'>>;

/** The rights of a user, which replace those of an earlier login; undefined: wrong password. */
function loginOf(context: CommandContext, user: string, given: Buffer): Login | undefined {
  const token = context.adminToken();
  if (user === ADMIN_USER && token !== undefined && isEqual(token, given))
    return { isAuthenticated: true, adminToken: token };
  const password = context.password(); // with it any user name is accepted
  const isRight = password === undefined ? user === 'default' : isEqual(password, given);
  return isRight ? { isAuthenticated: true, adminToken: undefined } : undefined;
}

function auth({ args, session, reply, context }: Invocation): undefined {
  if (args.count > 3) return reply.error(SYNTAX);
  if (context.password() === undefined && args.count === 2) return reply.error(NO_PASSWORD);
  const user = args.count === 3 ? args.text(1) : 'default';
  const login = loginOf(context, user, args.bytes(args.count - 1));
  if (!login) return reply.error(WRONG_PASSWORD);
  Object.assign(session, login);
  return reply.simple('OK');
}

/** Applies all options of HELLO or none; a string is an error. */
function applyHello(call: Invocation): string | undefined {
  const { args, session, context } = call;
  const protocol = args.count > 1 ? args.integer(1) : session.protocol;
  if (Number.isNaN(protocol)) return 'ERR Protocol version is not an integer or out of range';
  if (protocol !== 2 && protocol !== 3) return 'NOPROTO unsupported protocol version';
  let { name } = session;
  let login: Login | undefined;
  for (let n = 2; n < args.count; n++) {
    const option = args.lowerText(n);
    if (option === 'auth' && n + 2 < args.count) {
      login = loginOf(context, args.text(n + 1), args.bytes(n + 2));
      if (!login) return WRONG_PASSWORD;
      n += 2;
    } else if (option === 'setname' && n + 1 < args.count) {
      name = args.text(++n);
      if (!isName(name)) return BAD_NAME;
    } else return `ERR Syntax error in HELLO option '${args.text(n).slice(0, 128)}'`;
  }
  if (!login && !isAuthorised(call)) return HELLO_NOT_AUTHENTICATED;
  Object.assign(session, { protocol, name, ...login } satisfies Partial<Session>);
  return undefined;
}

function hello(call: Invocation): undefined {
  const { session, reply, context } = call;
  const error = applyHello(call);
  if (error !== undefined) return reply.error(error);
  reply.protocol = session.protocol;
  const server = { server: 'sluice', version: context.version };
  const connection = { proto: session.protocol, id: session.id };
  return reply.value({ ...server, ...connection, mode: 'standalone', role: 'master', modules: [] });
}

const isName = (name: string): boolean => /^[\x21-\x7e]{0,256}$/.test(name);

type Subcommand = Pick<RespCommand, 'arity'> & { run(call: Invocation): undefined };
type Subcommands = Readonly<Record<string, Subcommand>>;

const dispatchSubcommand =
  (subcommands: Subcommands) =>
  (call: Invocation): undefined => {
    const { args, reply } = call;
    const word = args.lowerText(1);
    if (word === 'help')
      return reply.value(Object.keys(subcommands).map((name) => name.toUpperCase()));
    if (!Object.hasOwn(subcommands, word)) return reply.error(unknownSubcommand(args));
    const subcommand = subcommands[word];
    if (matchesArity(subcommand, args.count)) return subcommand.run(call);
    return reply.error(wrongArity(`${args.lowerText(0)}|${word}`));
  };

export const matchesArity = (
  { arity, maxArity = Infinity }: Pick<RespCommand, 'arity' | 'maxArity'>,
  count: number,
): boolean => (arity < 0 ? count >= -arity && count <= maxArity : count === arity);

const clientSubcommands: Subcommands = {
  id: { arity: 2, run: ({ reply, session }) => reply.integer(session.id) },
  getname: {
    arity: 2,
    run: ({ reply, session }) =>
      session.name === '' ? reply.nil() : reply.value(Buffer.from(session.name, 'latin1')),
  },
  setname: {
    arity: 3,
    run({ args, reply, session }) {
      const name = args.text(2);
      if (!isName(name)) return reply.error(BAD_NAME);
      session.name = name;
      return reply.simple('OK');
    },
  },
  setinfo: { arity: 4, run: ({ reply }) => reply.simple('OK') },
};

/** Settings that tools read before they start. */
const CONFIG_VALUES: Readonly<Record<string, string>> = {
  save: '',
  appendonly: 'no',
  databases: '1',
};

const configSubcommands: Subcommands = {
  get: {
    arity: -3,
    run({ args, reply }) {
      const values: Record<string, string> = {};
      for (let n = 2; n < args.count; n++) {
        const name = args.lowerText(n);
        if (name === '*') Object.assign(values, CONFIG_VALUES);
        else if (Object.hasOwn(CONFIG_VALUES, name)) values[name] = CONFIG_VALUES[name];
      }
      return reply.value(values);
    },
  },
};

const FAST = new SimpleString('fast');
const AT_FAST = new SimpleString('@fast');
const OPTIONAL = new SimpleString('optional');

/** The entry of a command in COMMAND INFO. */
const commandInfo = ({ name, arity, keyIndex = 0, keyStep }: RespCommand): ReplyValue => {
  const step = keyStep ?? (keyIndex > 0 ? 1 : 0);
  const last = keyStep === undefined ? keyIndex : -1;
  return [name, arity, [FAST], keyIndex, last, step, [AT_FAST], [], [], []];
};

const commandDocs = ({ name, summary, usage }: RespCommand): [string, ReplyValue] => {
  const group = name.includes('.') ? 'module' : 'connection';
  return [name, { summary, since: '0.1.0', group, arguments: argumentSpecs(usage) }];
};

/** `key [cost]` as two arguments, the second optional. */
const argumentSpecs = (usage: string): ReplyValue[] =>
  (usage.match(/\[[^\]]*\]|\S+/g) ?? []).map((part) => ({
    name: part.replace(/[[\]]/g, ''),
    type: 'string',
    ...(part.startsWith('[') && { flags: [OPTIONAL] }),
  }));

function commandCommand(all: () => readonly RespCommand[]): RespCommand {
  const encodedReplies = new Map<string, Buffer>();
  /** Long replies are encoded once and shared. */
  const once = (kind: string, protocol: RespVersion, write: WriteReply): Buffer => {
    const name = `${kind} ${protocol}`;
    const encoded = encodedReplies.get(name) ?? encodeReply(protocol, write);
    encodedReplies.set(name, encoded);
    return encoded;
  };
  const named = (args: Arguments): (RespCommand | undefined)[] =>
    Array.from({ length: args.count - 2 }, (_, n) =>
      all().find((c) => c.name === args.lowerText(n + 2)),
    );

  return {
    name: 'command',
    arity: -1,
    summary: 'Lists commands',
    usage: '[COUNT] [DOCS name] [INFO name] [LIST]',
    run({ args, reply, session }) {
      const word = args.count > 1 ? args.lowerText(1) : 'info';
      if (word === 'count') return reply.integer(all().length);
      if (word === 'list') return reply.value(all().map(({ name }) => name));
      const describe = DESCRIPTIONS.get(word);
      if (!describe) return reply.error(unknownSubcommand(args));
      if (args.count > 2) return reply.value(describe(named(args)));
      return once(word, session.protocol, (writer) => writer.value(describe(all())));
    },
  };
}

/** Replies of COMMAND by subcommand; `commands` has undefined for an unknown name. */
const DESCRIPTIONS = new Map<
  string,
  (commands: readonly (RespCommand | undefined)[]) => ReplyValue
>([
  ['info', (commands) => commands.map((command) => (command ? commandInfo(command) : null))],
  [
    'docs',
    (commands) =>
      Object.fromEntries(commands.filter((command) => command !== undefined).map(commandDocs)),
  ],
]);

/** `all` returns every command, for COMMAND. */
export const redisCommands = (all: () => readonly RespCommand[]): readonly RespCommand[] => [
  {
    name: 'ping',
    arity: -1,
    maxArity: 2,
    summary: 'Replies PONG, or the message',
    usage: '[message]',
    run: ({ args, reply }) =>
      args.count === 2 ? reply.bulkBytes(args.bytes(1)) : reply.simple('PONG'),
  },
  {
    name: 'echo',
    arity: 2,
    summary: 'Replies the message',
    usage: 'message',
    run: ({ args, reply }) => reply.bulkBytes(args.bytes(1)),
  },
  {
    name: 'hello',
    arity: -1,
    isAllowedBeforeAuth: true,
    summary: 'Selects RESP2 or RESP3',
    usage: '[protover] [AUTH username password] [SETNAME name]',
    run: hello,
  },
  {
    name: 'auth',
    arity: -2,
    isAllowedBeforeAuth: true,
    summary: 'Authenticates with the password',
    usage: '[username] password',
    run: auth,
  },
  {
    name: 'quit',
    arity: -1,
    isAllowedBeforeAuth: true,
    isNeverQueued: true,
    summary: 'Ends the connection',
    usage: '',
    run({ reply, session }) {
      session.hasQuit = true;
      return reply.simple('OK');
    },
  },
  {
    name: 'reset',
    arity: 1,
    isAllowedBeforeAuth: true,
    isNeverQueued: true,
    summary: 'Resets the connection',
    usage: '',
    run({ reply, session, context }) {
      const isAuthenticated = context.password() === undefined;
      const login: Login = { isAuthenticated, adminToken: undefined };
      const fresh = { protocol: 2, name: '', transaction: undefined } as const;
      Object.assign(session, { ...fresh, ...login } satisfies Partial<Session>);
      reply.protocol = 2;
      return reply.simple('RESET');
    },
  },
  {
    name: 'select',
    arity: 2,
    summary: 'Accepts database 0 only',
    usage: 'index',
    run({ args, reply }) {
      const index = args.integer(1);
      if (Number.isNaN(index)) return reply.error(NOT_AN_INTEGER);
      return index === 0 ? reply.simple('OK') : reply.error('ERR DB index is out of range');
    },
  },
  {
    name: 'info',
    arity: -1,
    summary: 'Statistics of the daemon',
    usage: '[section]',
    run: ({ args, context }) => context.info.encoded(args.count === 2 ? args.lowerText(1) : 'all'),
  },
  {
    name: 'client',
    arity: -2,
    summary: 'Name and id of the connection',
    usage: 'ID | GETNAME | SETNAME name | SETINFO attribute value',
    run: dispatchSubcommand(clientSubcommands),
  },
  {
    name: 'config',
    arity: -2,
    summary: 'Settings that Redis tools read',
    usage: 'GET name',
    run: dispatchSubcommand(configSubcommands),
  },
  commandCommand(all),
];
