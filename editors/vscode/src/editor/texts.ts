/** Documents of VS Code in the terms of the policy. */
import * as vscode from "vscode";
import type { Replacement } from "../policy/changes";
import type { DocumentInfo } from "../policy/exclude";
import type { Text } from "../policy/messages";
import type { Edit } from "../policy/survival";

export const withLf = (text: string) => text.replaceAll("\r\n", "\n");

/** The document divided at a position. */
export function textAt(document: vscode.TextDocument, position: vscode.Position): Text {
  const text = document.getText();
  const offset = document.offsetAt(position);
  return { uri: document.uri.toString(), before: withLf(text.slice(0, offset)), after: withLf(text.slice(offset)) };
}

/** Of these VS Code may not know yet that they are: it learns of a file system when its extension is started. */
const KNOWN_FILE_SYSTEMS = new Set(["file", "vscode-remote", "vscode-vfs"]);

export function infoOf(document: vscode.TextDocument): DocumentInfo {
  const hasFolders = (vscode.workspace.workspaceFolders ?? []).length > 0;
  const file = fileOf(document);
  const { scheme } = document.uri;
  const folder = vscode.workspace.getWorkspaceFolder(file)?.uri.path;
  return {
    scheme,
    isWritable: vscode.workspace.fs.isWritableFileSystem(scheme) ?? KNOWN_FILE_SYSTEMS.has(scheme),
    path: file.path,
    folder,
    languageId: document.languageId,
    // Without a folder a person has opened each file by itself.
    isInWorkspace: !hasFolders || folder !== undefined,
  };
}

/** The file of a document; that of the notebook for a cell. */
const fileOf = ({ uri }: vscode.TextDocument): vscode.Uri => notebookOf(uri.toString())?.uri ?? uri;

function notebookOf(uri: string): vscode.NotebookDocument | undefined {
  const isIt = ({ document }: vscode.NotebookCell) => document.uri.toString() === uri;
  return vscode.workspace.notebookDocuments.find((each) => each.getCells().some(isIt));
}

/** What runs before a cell of a notebook: the earlier cells of its language. Empty for other documents. */
export function earlierCells(uri: string): string {
  const documents =
    notebookOf(uri)
      ?.getCells()
      .map((each) => each.document) ?? [];
  const at = documents.findIndex((each) => each.uri.toString() === uri);
  return documents
    .slice(0, Math.max(0, at))
    .filter((each) => each.languageId === documents[at]?.languageId)
    .map((each) => `${withLf(each.getText()).trimEnd()}\n\n`)
    .join("");
}

export function replacementsOf(event: vscode.TextDocumentChangeEvent): Replacement[] {
  return event.contentChanges.map((each) => ({ numDeleted: each.rangeLength, inserted: withLf(each.text) }));
}

/** The changes with the document's own ends of lines. */
export function editsOf(event: vscode.TextDocumentChangeEvent): Edit[] {
  return event.contentChanges.map((each) => ({
    offset: each.rangeOffset,
    numDeleted: each.rangeLength,
    inserted: each.text,
  }));
}

/** Where an inserted text stands that ends at a position, and the text with the document's own ends of lines. */
export function insertedBefore(document: vscode.TextDocument, position: vscode.Position, text: string) {
  const inserted = document.eol === vscode.EndOfLine.CRLF ? text.replaceAll("\n", "\r\n") : text;
  const offset = document.offsetAt(position) - inserted.length;
  const isThere = offset >= 0 && document.getText().startsWith(inserted, offset);
  return isThere ? { offset, inserted } : undefined;
}
