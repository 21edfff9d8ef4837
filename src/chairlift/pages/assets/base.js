"use strict";
// What the programs of our pages have in common. Names come from strangers: they are only ever set as text.
const shared = {
  el(tag, properties, ...children) {
    const node = document.createElement(tag);
    Object.assign(node, properties);
    for (const child of children) node.append(child);
    return node;
  },

  seconds(value) {
    const size = Math.abs(value);
    if (size === 0) return "0 s";
    if (size < 0.001) return `${+(value * 1e6).toPrecision(3)} µs`;
    if (size < 1) return `${+(value * 1e3).toPrecision(3)} ms`;
    return size < 1000 ? `${+value.toPrecision(4)} s` : `${Math.round(value)} s`;
  },

  count: (value) => value.toLocaleString("en-US", { maximumFractionDigits: 1 }),
  percent: (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`,
};
