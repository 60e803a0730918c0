export type { RemoteBackendFactory } from '../remote-backend.ts';
export { SluiceObject } from './object.ts';
export { type DurableObjectsOptions, durableObjects } from './options.ts';
export type { ObjectNamespace, ObjectState } from './platform.ts';
