/** The pure rules: what may be sent, what a change means, what survives, what the status bar says. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { mock, test } from "node:test";
import { SurvivalFeedback } from "../src/feedback";
import { acceptedPart, changeOf } from "../src/policy/changes";
import { clip } from "../src/policy/clip";
import { CODE, matches, patternsOf, reasonNotToSend, SECRET_WORDS, SECRETS } from "../src/policy/exclude";
import { Status } from "../src/policy/status";
import { AcceptedText } from "../src/policy/survival";

const { excludes } = JSON.parse(readFileSync(join(__dirname, "../../../policy_cases.json"), "utf8"));

const FILE = { scheme: "file", isWritable: true, languageId: "python", isInWorkspace: true };

function reasonFor(path: string, exclude: readonly string[] = [], folder?: string): string | undefined {
  const rules = { exclude, languages: { "*": true }, outsideWorkspace: false };
  return reasonNotToSend({ ...FILE, path, folder }, rules);
}

test("files with secrets are not sent, whatever is set", () => {
  assert.deepEqual([...SECRETS].sort(), [...excludes.patterns].sort());
  assert.deepEqual([SECRET_WORDS, CODE], [excludes.words, excludes.code]);
  for (const exclude of [[], ["*.txt"]]) {
    for (const { path, folder, excluded } of excludes.cases)
      assert.equal(reasonFor(path, exclude, folder)?.startsWith("excluded by") ?? false, excluded, path);
  }
  assert.equal(reasonFor("/w/.env"), "excluded by .env, as files with secrets are");
  assert.equal(reasonFor("/w/a.sql", ["*.sql"]), "excluded by *.sql");
  assert.equal(reasonFor("/home/private/w/a.py", ["private"], "/home/private/w"), "excluded by private");
});

test("a workspace adds patterns to those of the user and takes none away", () => {
  assert.deepEqual(patternsOf({ globalValue: ["*.sql"], workspaceValue: ["*.csv"] }), ["*.sql", "*.csv"]);
  assert.deepEqual(patternsOf({ globalValue: ["*.sql"], workspaceValue: [] }), ["*.sql"]);
  assert.deepEqual(patternsOf({ globalValue: ["*.sql", 1], workspaceValue: { a: 1 } }), ["*.sql"]);
  assert.deepEqual(patternsOf(undefined), []);
});

test("patterns match names, folders and paths", () => {
  assert.ok(matches("*.{pem,key}", "/w/a.pem"));
  assert.ok(!matches("*.{pem,key}", "/w/a.pems"));
  assert.ok(matches("build", "/w/build/a.js"));
  assert.ok(matches("src/**/gen_?.py", "/w/src/a/b/gen_1.py"));
  assert.ok(matches("src/**/gen_?.py", "/w/src/gen_1.py"));
  assert.ok(!matches("src/*.py", "/w/src/a/b.py"));
  assert.ok(matches("a+b(1).{txt", "/w/a+b(1).{txt"), "characters of regular expressions are plain");
});

test("languages, schemes and the workspace decide, too", () => {
  const file = { ...FILE, path: "/w/a" };
  const rules = { exclude: [], languages: { "*": true, markdown: false }, outsideWorkspace: false };
  assert.equal(reasonNotToSend(file, rules), undefined);
  assert.equal(reasonNotToSend({ ...file, languageId: "markdown" }, rules), "off for markdown");
  for (const scheme of ["file", "vscode-remote", "vscode-vfs", "memfs", "ssh"])
    assert.equal(reasonNotToSend({ ...file, scheme }, rules), undefined, scheme);
  for (const scheme of ["untitled", "vscode-notebook-cell"])
    assert.equal(reasonNotToSend({ ...file, scheme, isWritable: false }, rules), undefined, scheme);
  for (const scheme of ["output", "git", "comment"])
    assert.equal(reasonNotToSend({ ...file, scheme, isWritable: false }, rules), "not a file", scheme);
  assert.equal(reasonNotToSend({ ...file, scheme: "vscode-userdata" }, rules), "not a file");
  const outside = { ...file, isInWorkspace: false };
  assert.equal(reasonNotToSend(outside, rules), "outside the workspace");
  assert.equal(reasonNotToSend(outside, { ...rules, outsideWorkspace: true }), undefined);
  assert.equal(reasonNotToSend({ ...outside, scheme: "untitled" }, rules), undefined);
  assert.equal(reasonNotToSend(file, { ...rules, languages: { "*": false, python: true } }), undefined);
});

test("a change is a key, a paste, a deletion, an undo or another program's", () => {
  const one = (inserted: string, numDeleted = 0) => changeOf([{ inserted, numDeleted }], false);
  for (const key of ["a", "()", "''", "\n    ", "\n    \n", "\u{1F600}"])
    assert.equal(one(key), "typed", JSON.stringify(key));
  assert.equal(one("abc"), "pasted");
  assert.equal(one("", 3), "deleted");
  assert.equal(changeOf([{ inserted: "a", numDeleted: 0 }], true), "undone");
  assert.equal(
    changeOf(
      [
        { inserted: "a", numDeleted: 0 },
        { inserted: "a", numDeleted: 0 },
      ],
      false,
    ),
    "other",
  );
});

test("a part of the shown text that no single key inserts was accepted", () => {
  const part = (inserted: string, shown?: string) => acceptedPart(shown, [{ inserted, numDeleted: 0 }]);
  assert.equal(part("total", "total = 1"), "word");
  assert.equal(part("total = 1", "total = 1\nreturn"), "line");
  assert.equal(part("t", "total"), undefined);
  assert.equal(part("total", "total"), "whole");
  assert.equal(part("\n    ", "\n    return total"), undefined, "Enter indents by itself");
  assert.equal(part("()", "()\nreturn"), undefined, "the editor closed the bracket");
  assert.equal(part("a", "a"), undefined);
  assert.equal(part("other", "total = 1"), undefined);
  assert.equal(part("total"), undefined);
});

test("the cut of a long document moves in big steps, at the start of a line", () => {
  const lines = (count: number) => "0123456789\n".repeat(count);
  const starts = new Set<number>();
  for (let count = 6_000; count < 9_000; count++) {
    const { prefix } = clip(lines(count), "");
    assert.ok(prefix.length <= 64 * 1024);
    starts.add(count * 11 - prefix.length);
    assert.equal((count * 11 - prefix.length) % 11, 0);
  }
  assert.ok(starts.size <= 4, `${starts.size} cuts`);
  assert.deepEqual(clip("a", "b".repeat(99_999)), { prefix: "a", suffix: "b".repeat(16 * 1024) });
});

test("an accepted text is followed through the changes of its document", () => {
  const document = (text: string, accepted: AcceptedText) => accepted.shareIn(text);
  const accepted = new AcceptedText(1, "u", 4, "abcdef");
  assert.equal(document("x = abcdef", accepted), 1);
  accepted.apply({ offset: 0, numDeleted: 0, inserted: "# note\n" });
  assert.equal(document("# note\nx = abcdef", accepted), 1);
  accepted.apply({ offset: 13, numDeleted: 2, inserted: "XY" });
  assert.equal(document("# note\nx = abXYef", accepted), 4 / 6);
  accepted.apply({ offset: 17, numDeleted: 0, inserted: " # c" });
  assert.equal(document("# note\nx = abXYef # c", accepted), 4 / 6);
  accepted.apply({ offset: 0, numDeleted: 21, inserted: "" });
  assert.equal(document("", accepted), 0);
});

test("an undone acceptance has not survived", () => {
  const accepted = new AcceptedText(1, "u", 4, "abc");
  accepted.apply({ offset: 4, numDeleted: 3, inserted: "" });
  assert.equal(accepted.shareIn("x = abc"), 0, "the same text elsewhere does not count");
});

test("nothing is known of a text that very much text replaced, unless that is the same", () => {
  const long = "text".repeat(1_000);
  const accepted = new AcceptedText(1, "u", 0, long);
  assert.equal(accepted.shareIn(long), 1);
  accepted.apply({ offset: 0, numDeleted: long.length, inserted: "x".repeat(1_000_000) });
  assert.equal(accepted.shareIn("x".repeat(1_000_000)), undefined);
});

test("survival is reported after 30, 90, 180 and 360 s, once for words of one answer", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    let text = "x = abc def";
    const reports: unknown[] = [];
    const sequences = new Map([[7, 107]]);
    const feedback = new SurvivalFeedback({
      textOf: () => text,
      sequenceOf: (request) => sequences.get(request),
      report: (...values) => reports.push(values),
    });
    feedback.accepted(7, "u", 4, "abc");
    feedback.accepted(7, "u", 7, " def");
    feedback.accepted(6, "u", 0, "x");
    sequences.clear(); // as after many further requests
    mock.timers.tick(89_000);
    text = "x = abc";
    feedback.edited("u", [{ offset: 7, numDeleted: 4, inserted: "" }]);
    mock.timers.tick(400_000);
    assert.deepEqual(reports, [
      [107, 30, 1],
      [107, 90, 3 / 7],
      [107, 180, 3 / 7],
      [107, 360, 3 / 7],
    ]);
  } finally {
    mock.timers.reset();
  }
});

test("the status bar asks a person whom the server does not know to sign in", () => {
  const status = new Status();
  status.connection = { state: "unknown", why: "the server refused the token" };
  const { text, tooltip, isWarning } = status.textFor(undefined);
  assert.deepEqual(
    [text, tooltip, isWarning],
    ["$(key) Completions: sign in", "Completions: the server refused the token", true],
  );
});

test("the status bar says connected, slow, away and off", () => {
  const status = new Status();
  const text = (off?: string) => status.textFor(off).text.replace(/^\S+ /, "");
  assert.equal(text("off for markdown"), "Completions off");
  status.connection = { state: "connected", address: "a:1" };
  assert.equal(text(), "Completions");
  for (let i = 0; i < 8; i++) status.answered(2_000);
  assert.equal(text(), "Completions slow");
  for (let i = 0; i < 8; i++) status.answered(100);
  assert.match(status.textFor(undefined).tooltip, /usually 100 ms/);
  status.failed("shed (overload)");
  assert.equal(text(), "Completions slow");
  status.connection = { state: "away", why: "no connection to a:1" };
  assert.deepEqual([text(), status.textFor(undefined).isWarning], ["Completions away", true]);
});
