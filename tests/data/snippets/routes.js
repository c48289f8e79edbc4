"use strict";

const express = require("express");
const { readFile } = require("node:fs/promises");

const router = express.Router();
const PATTERN = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/;

router.get("/items", async (request, response) => {
  try {
    const items = JSON.parse(await readFile("items.json", "utf8"));
    response.json(items.filter((item) => item.on));
  } catch (error) {
    console.error(`can't read the items: ${error.message}`);
    response.status(500).json({ error: "no items" });
  }
});

router.get("/items/:id", async (request, response) => {
  const items = JSON.parse(await readFile("items.json", "utf8"));
  const item = items.find((each) => each.id === Number(request.params.id));
  if (!item) {
    response.status(404).json({ error: "no such item" });
    return;
  }
  response.json(item);
});

function isAddress(text) {
  const match = PATTERN.exec(text);
  return match !== null && match.slice(1).every((part) => Number(part) < 256);
}

const defaults = [
  {
    id: 1,
    on: true,
    tags: ["a", "b"],
  },
  {
    id: 2,
    on: true,
    tags: [],
  },
  {
    id: 3,
    on: false,
    tags: ["c"],
  },
];

module.exports = { router, isAddress, defaults };
