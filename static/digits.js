// @ts-check
/** Whole numbers that JavaScript would round keep their digits. */

/** A whole number that JavaScript would round: its digits. */
export class Digits {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }

  /** The digits, where the browser can write them; else a text. */
  toJSON() {
    const { rawJSON } = /** @type {any} */ (JSON);
    return rawJSON ? rawJSON(this.text) : this.text;
  }
}

/** JSON with all digits of whole numbers; no text of ours holds NUL. @param {string} text */
export function parseJson(text) {
  const marked = text.replace(/"(?:[^"\\]|\\.)*"|-?\d{16,}(?![\d.eE])/g, (token) => (
    token[0] === '"' || Number.isSafeInteger(Number(token)) ? token : `{"\\u0000":"${token}"}`));
  return JSON.parse(marked, (_, value) => (value?.['\0'] ? new Digits(value['\0']) : value));
}
