using Workerd = import "/workerd/workerd.capnp";

# Two isolates of one Worker, with the oldest supported date and a recent one. The first also runs the objects.
const config :Workerd.Config = (
  services = [
    (name = "first", worker = .first),
    (name = "second", worker = .second),
    (name = "disk", disk = (writable = true)),
  ],
  sockets = [
    (name = "http", http = (), service = "first"),
    (name = "second", http = (), service = "second"),
  ],
);

const first :Workerd.Worker = (
  modules = [ (name = "worker", esModule = embed "bundle.mjs") ],
  bindings = [ (name = "LIMITS", durableObjectNamespace = "SluiceObject") ],
  durableObjectNamespaces = [ (className = "SluiceObject", uniqueKey = "sluice", enableSql = true) ],
  durableObjectStorage = (localDisk = "disk"),
  compatibilityDate = "2024-10-14",
);

const second :Workerd.Worker = (
  modules = [ (name = "worker", esModule = embed "bundle.mjs") ],
  bindings = [
    (name = "LIMITS", durableObjectNamespace = (className = "SluiceObject", serviceName = "first")),
  ],
  compatibilityDate = "2026-07-01",
);
