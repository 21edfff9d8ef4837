// Talks with a server's model, in the element `talk`. `key` gives the key to ask with and `model` the name of the model, null
// while it is not known; `askForKey` says that another key is needed.
function startChat(talk, { key, model, askForKey }) {
  const { el } = shared, { text, time, whole, plural, put, headers, problem, Refused } = tools;
  const turns = [];
  const said = el("div", { className: "said", tabIndex: 0 });
  said.setAttribute("role", "log");
  said.setAttribute("aria-label", "Conversation");
  const hello = text("p", "nothing", "Say something to the model. What it was doing meanwhile stands on the left.");
  const box = el("textarea", { rows: 2, placeholder: "Message", name: "message" });
  box.setAttribute("aria-label", "Message");
  const send = el("button", { type: "submit", className: "primary", textContent: "Send" });
  const fresh = el("button", { type: "button", textContent: "New chat", onclick: () => newChat() });
  const system = el("textarea", { rows: 2, name: "system" });
  const maxTokens = el("input", { type: "number", min: 1, value: 512, name: "max_tokens" });
  const temperature = el("input", { type: "number", min: 0, max: 2, step: 0.1, placeholder: "the model's", name: "temperature" });
  const setting = (label, input, className = "") => el("label", { className }, label, input);
  const form = el("form", { className: "ask" },
    el("div", { className: "row" }, box, send),
    el("details", {}, text("summary", "", "Settings"), el("div", { className: "settings" },
      setting("System prompt", system, "whole"), setting("Most tokens", maxTokens), setting("Temperature", temperature))));
  talk.append(el("div", { className: "bar" }, text("h2", "", "Chat"), fresh), said, form);
  said.append(hello);
  let talking = null;

  function newChat() {
    if (talking) talking.abort();
    turns.length = 0;
    said.replaceChildren(hello);
    box.focus();
  }

  function addTurn(role, content) {
    hello.remove();
    const body = el("div", { className: "text", textContent: content, dir: "auto" });
    const turn = el("div", { className: `turn ${role}` }, body);
    said.append(turn);
    said.scrollTop = said.scrollHeight;
    return { turn, body };
  }

  const isAtEnd = () => said.scrollHeight - said.scrollTop - said.clientHeight < 60;

  async function ask(message) {
    const controller = new AbortController();
    talking = controller;
    put(send, "Stop");
    const asked = [...(system.value.trim() ? [{ role: "system", content: system.value }] : []), ...turns, { role: "user", content: message }];
    addTurn("user", message);
    const answer = new Answer(addTurn("assistant", ""));
    try {
      const body = { model: model(), messages: asked, stream: true, explain: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
      if (maxTokens.value) body.max_tokens = Number(maxTokens.value);
      if (temperature.value) body.temperature = Number(temperature.value);
      const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(key(), { "Content-Type": "application/json" }), body: JSON.stringify(body), credentials: "omit", signal: controller.signal });
      if (!response.ok) {
        if (response.status === 401) askForKey("The chat needs an API key; an admin key opens nothing else.");
        throw new Refused(await problem(response), response.status);
      }
      for await (const event of events(response.body)) answer.take(event);
      if (!answer.isDone) throw new Error("The answer broke off.");
    } catch (error) {
      if (error.name === "AbortError") answer.note("stopped");
      else answer.fail(error.message);
    }
    answer.end();
    if (answer.content) turns.push({ role: "user", content: message }, { role: "assistant", content: answer.content });
    if (talking === controller) {
      talking = null;
      put(send, "Send");
    }
  }

  // The events of a stream, parsed; the end is null.
  async function* events(stream) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const pieces = (rest + value).split("\n\n");
      rest = pieces.pop();
      for (const piece of pieces) {
        if (!piece.startsWith("data: ")) continue;
        yield piece === "data: [DONE]" ? null : JSON.parse(piece.slice(6));
      }
    }
  }

  class Answer {
    constructor({ turn, body }) {
      Object.assign(this, { turn, body, content: "", isDone: false, began: performance.now(), first: null, last: null, tokens: 0, notes: [] });
      this.words = document.createTextNode("");
      body.append(this.words);
      body.classList.add("open");
      this.about = text("div", "about", "");
      turn.append(this.about);
    }

    take(event) {
      if (event === null) {
        this.isDone = true;
        return;
      }
      if (event.error) throw new Error(event.error.message);
      const stays = isAtEnd();
      for (const { delta, finish_reason: reason } of event.choices) {
        if (delta.reasoning) this.think(delta.reasoning);
        if (delta.content) {
          this.content += delta.content;
          this.words.appendData(delta.content);
        }
        if (reason === "length") this.note("ended by its length");
      }
      if (event.usage && event.usage.completion_tokens > this.tokens) {
        this.tokens = event.usage.completion_tokens;
        this.last = performance.now();
        this.first ??= this.last;
        this.speed();
      }
      for (const one of event.explanation || []) this.why = one.sentence;
      if (stays) said.scrollTop = said.scrollHeight;
    }

    think(piece) {
      if (!this.thought) {
        this.thought = text("div", "", "");
        this.turn.insertBefore(el("details", {}, text("summary", "", "Thought"), this.thought), this.body);
      }
      this.thought.append(piece);
    }

    note(words) {
      if (!this.notes.includes(words)) this.notes.push(words);
    }

    fail(message) {
      this.turn.append(text("div", "wrong", message));
    }

    speed() {
      const took = (this.last - this.first) / 1000;
      const rate = this.tokens > 1 && took > 0 ? `${whole((this.tokens - 1) / took)} tokens/s` : "";
      put(this.about, [plural(this.tokens, "token"), rate, `first after ${time((this.first - this.began) / 1000)}`, ...this.notes].filter(Boolean).join(", "));
    }

    end() {
      this.body.classList.remove("open");
      if (this.tokens) this.speed();
      else put(this.about, this.notes.join(", "));
      if (this.why) this.turn.append(text("div", "about why", this.why));
      this.turn.dataset.ended = "yes";
      said.scrollTop = said.scrollHeight;
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (talking) {
      talking.abort();
      return;
    }
    const message = box.value;
    if (!message.trim() || model() === null) return;
    box.value = "";
    ask(message);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!talking) form.requestSubmit();
  });
}
