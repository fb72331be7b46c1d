// SPDX-License-Identifier: Apache-2.0
import kwker from './index.js';

export const { Client, Generation } = kwker;
export default kwker;
