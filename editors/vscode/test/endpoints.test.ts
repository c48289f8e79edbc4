import assert from "node:assert/strict";
import { test } from "node:test";
import { Backoff } from "../src/client/backoff";
import { type Caller, callerMetadata, EndpointChoice, parseAddresses, type Tls } from "../src/client/endpoints";
import { SessionStream } from "../src/client/stream";
import { Token } from "../src/client/token";
import { Recorder } from "./support";

test("addresses are parsed, and the default port is added", () => {
  assert.deepEqual(parseAddresses("a:1, b ,[::1]:3"), ["a:1", "b:50051", "[::1]:3"]);
  for (const wrong of ["", "a:1,", "http://a:1", "a b"]) assert.throws(() => parseAddresses(wrong), /address/);
});

test("a token does not go to another machine in plain text", () => {
  const sent = (address: string, isEncrypted: boolean) =>
    callerMetadata({ token: "t" }, address, isEncrypted).get("authorization").length > 0;
  assert.equal(sent("example.com:1", false), false);
  assert.equal(sent("localhost.example.com:1", false), false);
  assert.equal(sent("127.0.0.1.example.com:1", false), false);
  assert.equal(sent("example.com:1", true), true);
  assert.equal(sent("127.0.0.1:1", false), true);
});

test("what can't be used is named at the start, without the token", () => {
  const start = (caller: Caller, tls?: Tls) =>
    new SessionStream({ addresses: ["127.0.0.1:1"], caller, tls }, new Recorder()).close();
  assert.throws(() => start({ user: "zo\u00eb" }), /^Error: user: /);
  assert.throws(() => Token.ofText("s\u00e9same", "here"), /^Error: token: (?!.*same)/);
  const settings = { addresses: ["example.com:1"], caller: {}, token: Token.ofText("t", "here") };
  assert.throws(() => new SessionStream(settings, new Recorder()), /not sent to example.com:1 without TLS/);
  const der = Buffer.from("30820122300d0609", "hex");
  for (const name of ["ca", "certificate", "key"]) {
    assert.throws(() => start({}, { [name]: der }), new RegExp(`^Error: tls\\.${name}: expected a PEM file`));
  }
  const broken = Buffer.from("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  assert.throws(
    () => start({}, { certificate: broken, key: Buffer.from("-----BEGIN PRIVATE KEY-----\n") }),
    /^Error: tls: /,
  );
});

test("users are spread over replicas, each always to the same one", () => {
  const addresses = ["a:1", "b:1", "c:1"];
  const counts = new Map<string, number>();
  for (let user = 0; user < 300; user++) {
    const chosen = new EndpointChoice(addresses, `user ${user}`).choose(0);
    assert.equal(new EndpointChoice([...addresses].reverse(), `user ${user}`).choose(0), chosen);
    counts.set(chosen, (counts.get(chosen) ?? 0) + 1);
  }
  for (const address of addresses) assert.ok((counts.get(address) ?? 0) > 60, `${address} has too few users`);
});

test("a replica that failed is passed over for longer each time, until it answers", () => {
  const choice = new EndpointChoice(["a:1", "b:1"], "ada");
  const first = choice.choose(0);
  choice.failed(first, 0);
  assert.notEqual(choice.choose(999), first);
  assert.equal(choice.choose(1_000), first);
  choice.failed(first, 1_000);
  assert.notEqual(choice.choose(2_999), first);
  assert.equal(choice.choose(3_000), first);
  choice.answered(first);
  assert.equal(choice.choose(0), first);
});

test("if all have failed, the one that is usable soonest is tried", () => {
  const choice = new EndpointChoice(["a:1", "b:1"], "ada");
  choice.failed("a:1", 0, 9_000);
  choice.failed("b:1", 0);
  assert.equal(choice.choose(0), "b:1");
});

test("the back-off draws from a bound that doubles from 100 ms to 5 s", () => {
  const backoff = new Backoff(() => 1);
  assert.deepEqual(
    Array.from({ length: 8 }, () => backoff.nextMs()),
    [100, 200, 400, 800, 1600, 3200, 5000, 5000],
  );
  backoff.reset();
  assert.equal(backoff.nextMs(), 100);
});
