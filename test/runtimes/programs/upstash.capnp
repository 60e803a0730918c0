using Workerd = import "/workerd/workerd.capnp";

# Every request that the Worker sends goes to the HTTP interface of a Redis, at the port that the test puts in.
const config :Workerd.Config = (
  services = [
    (name = "main", worker = .worker),
    (name = "redis", external = (address = "127.0.0.1:REDIS_PORT", http = ())),
    (name = "disk", disk = (writable = true)),
  ],
  sockets = [ (name = "http", http = (), service = "main") ],
);

const worker :Workerd.Worker = (
  modules = [ (name = "worker", esModule = embed "bundle.mjs") ],
  globalOutbound = "redis",
  compatibilityDate = "2026-07-01",
);
