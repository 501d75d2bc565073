// @ts-check
/** The server's time, because the clock here may be wrong. */
let skew = 0;

/** The server's time in milliseconds. */
export const now = () => Date.now() + skew;

/** Notes what an answer says of it. @param {number} date in milliseconds; NaN says nothing */
export function noteClock(date) {
  if (Math.abs(date - now()) > 1500) skew = date - Date.now();
}
