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

export function infoOf(document: vscode.TextDocument): DocumentInfo {
  const hasFolders = (vscode.workspace.workspaceFolders ?? []).length > 0;
  const file = fileOf(document);
  return {
    scheme: document.uri.scheme,
    path: file.path,
    languageId: document.languageId,
    // Without a folder a person has opened each file by itself.
    isInWorkspace: !hasFolders || vscode.workspace.getWorkspaceFolder(file) !== undefined,
  };
}

/** The file of a document; that of the notebook for a cell. */
function fileOf(document: vscode.TextDocument): vscode.Uri {
  const isItsCell = (cell: vscode.NotebookCell) => cell.document === document;
  const notebook = vscode.workspace.notebookDocuments.find((each) => each.getCells().some(isItsCell));
  return notebook?.uri ?? document.uri;
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
