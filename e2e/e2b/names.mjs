// Has all names lead to this host, for what is started with --import of this.
import dns from "node:dns";

dns.lookup = (name, options, done = options) => {
  if (options?.all) return done(null, [{ address: "127.0.0.1", family: 4 }]);
  return done(null, "127.0.0.1", 4);
};
