/** A mistake that a person can correct; the message is one sentence for them. */
export class Refused extends Error {}
