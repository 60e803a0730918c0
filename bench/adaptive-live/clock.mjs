/** Milliseconds on a clock that all processes of the machine share. */
export const now = () => performance.timeOrigin + performance.now();
