// What watching and chatting both use. Names come from strangers: they are only ever set as text.
const tools = (() => {
  const { el, seconds, count } = shared;

  const text = (tag, className, content) => el(tag, { className, textContent: content });
  // Whatever a name is made of, it neither turns what stands beside it around nor takes more room than it has.
  const name = (content, className = "cut") => el("bdi", { className, textContent: content, title: content, dir: "auto" });
  const time = (value) => (value === null || value === undefined ? "–" : value < 0.995 ? seconds(+value.toPrecision(2)) : `${value.toFixed(value < 99.5 ? 1 : 0)} s`);
  const whole = (value) => count(Math.round(value));
  const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

  const put = (node, content) => { if (node.textContent !== content) node.textContent = content; };

  function headers(key, more = {}) {
    return key ? { ...more, Authorization: `Bearer ${key}` } : more;
  }

  async function problem(response) {
    try {
      return (await response.json()).error.message;
    } catch {
      return `The server answered with status ${response.status}.`;
    }
  }

  class Refused extends Error {
    constructor(message, status) {
      super(message);
      this.status = status;
    }
  }

  return { text, name, time, whole, plural, put, headers, problem, Refused };
})();
