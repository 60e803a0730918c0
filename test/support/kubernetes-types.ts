/**
 * Compares objects with the API of Kubernetes: the compiler knows its types, and reports unknown fields of literals.
 *
 * The types come from the published OpenAPI documents (package kubernetes-models). Custom resources are left out.
 */

import { execFile } from 'node:child_process';
import { symlinkSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';

interface KubernetesObject {
  readonly apiVersion: string;
  readonly kind: string;
}

const isBuiltIn = ({ apiVersion }: KubernetesObject): boolean =>
  /^(?:v1$|apps\/|policy\/|batch\/|[\w.]+\.k8s\.io\/)/.test(apiVersion);

const declaration = (object: KubernetesObject, n: number): string => `
import type { I${object.kind} as Type${n} } from 'kubernetes-models/${object.apiVersion}';
export const object${n}: Type${n} = ${JSON.stringify(object, undefined, 2)};`;

/** The compiler's messages; empty if there are none. `folder` is an empty one. */
export async function kubernetesMistakes(
  objects: readonly KubernetesObject[],
  folder: string,
): Promise<string> {
  symlinkSync(resolve('node_modules'), join(folder, 'node_modules'), 'junction');
  writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');
  writeFileSync(join(folder, 'objects.ts'), objects.filter(isBuiltIn).map(declaration).join('\n'));
  const tsc = resolve('node_modules/typescript/bin/tsc');
  const flags = ['--noEmit', '--strict', '--skipLibCheck', '--module', 'esnext', '--types', ''];
  const args = [tsc, ...flags, '--moduleResolution', 'bundler', 'objects.ts'];
  return promisify(execFile)(process.execPath, args, { cwd: folder }).then(
    ({ stdout }) => stdout,
    ({ stdout }) => stdout,
  );
}
