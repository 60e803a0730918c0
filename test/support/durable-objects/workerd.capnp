using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .worker),
    (name = "disk", disk = (writable = true)),
  ],
  sockets = [ (name = "http", http = (), service = "main") ],
);

const worker :Workerd.Worker = (
  modules = [ (name = "worker", esModule = embed "bundle.mjs") ],
  bindings = [
    (name = "LIMITS", durableObjectNamespace = "SluiceObject"),
    (name = "OTHER", durableObjectNamespace = "OtherObject"),
  ],
  durableObjectNamespaces = [
    (className = "SluiceObject", uniqueKey = "sluice", enableSql = true),
    (className = "OtherObject", uniqueKey = "other"),
  ],
  durableObjectStorage = (localDisk = "disk"),
  compatibilityDate = "2026-07-01",
);
