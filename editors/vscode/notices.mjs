// The licences of the packages that a bundle contains.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const IN_PACKAGE = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//;
const COMMENT_AT_HEAD = /^(?:"use strict";\r?\n)?((?:\/\/.*\n)+)/;

/** The notices of the packages that bundled files come from. Throws an Error that names a package without a licence. */
export function noticesOf(files, apacheText) {
  const folders = new Set(files.flatMap((path) => IN_PACKAGE.exec(path)?.[1] ?? []));
  const notices = [...folders].sort().map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const own = files.filter((path) => path.startsWith(`${folder}/`));
    const text = licenceIn(folder) || licenceAtHeads(own, license, apacheText);
    if (!text) throw new Error(`${name} ${version}, ${license}: no text of its licence was found`);
    return `${name} ${version}, ${license}\n\n${text}\n`;
  });
  return notices.join(`\n${"-".repeat(80)}\n\n`);
}

function licenceIn(folder) {
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  return file ? readFileSync(join(folder, file), "utf8").trim() : "";
}

/** The comments that a package's files begin with, and the Apache License if it is the one that they refer to. */
function licenceAtHeads(files, license, apacheText) {
  const heads = files.flatMap((path) => COMMENT_AT_HEAD.exec(readFileSync(path, "utf8"))?.[1] ?? []);
  const texts = [...new Set(heads)].map((each) => each.replace(/^\/\/ ?/gm, "").trim());
  if (texts.length > 0 && /\bApache-2\.0\b/.test(license)) texts.push(apacheText.trimEnd());
  return texts.join("\n\n");
}
