// @ts-check
/** Comes first: everything else has its texts when it is loaded. */
import { loadLanguage } from './language.js';

loadLanguage().then(() => import('./app.js'));
