// @ts-check
/** What the whole page knows; views listen for the key they show. */

/** @import {State} from './types.js' */

/** Each change is an event of its key's name. */
class Store extends EventTarget {
  /** @type {State} */
  state = {
    session: null, exposed: [], service: null, catalogue: null, trouble: null, setup: false,
  };

  /** @template {keyof State} K @param {K} key @param {State[K]} value */
  set(key, value) {
    if (JSON.stringify(value) === JSON.stringify(this.state[key])) return;
    this.state[key] = value;
    this.dispatchEvent(new Event(key));
  }

  /** @param {keyof State} key @param {() => void} listener @param {AbortSignal} [signal] */
  on(key, listener, signal) {
    this.addEventListener(key, listener, { signal });
  }
}

export const store = new Store();

/** Whether the one who is logged in is an admin. */
export const isAdmin = () => store.state.session?.user.role === 'admin';

/** Whether they may change something; viewers only look. */
export const mayChange = () => store.state.session?.user.role !== 'viewer';
