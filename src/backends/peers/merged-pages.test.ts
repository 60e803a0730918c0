import { describe, expect, test } from 'vitest';
import { PageContents, type ReportSet } from './included-reports.ts';
import { MergedPages } from './merged-pages.ts';
import { ReceivedSequences } from './received-sequences.ts';
import { ReportLog } from './report-log.ts';

const [A, B, OWN] = [1, 2, 3];
const LIMIT = 7;

const contentsOf = (isComplete: boolean, ...sets: ReportSet[]): PageContents =>
  new PageContents({ isComplete, sets });
const reports = (origin: number, highest: number, ...missing: number[]): ReportSet => ({
  origin,
  highest,
  missing,
});
const hits = (key: number, count = 1): number[] => [LIMIT, key, key, count];

describe('report log', () => {
  test('hits that a page does not include are added to it', () => {
    const log = new ReportLog();
    log.add(A, 1, hits(1, 10));
    log.add(A, 2, [...hits(1, 20), ...hits(2, 5)]);
    log.add(B, 4, hits(1, 40));
    log.add(OWN, 1, hits(1, 80));
    const beyond = log.hitsBeyond(contentsOf(true, reports(A, 1), reports(B, 5, 4, 1)), LIMIT);
    expect([beyond(1, 1), beyond(2, 2), beyond(3, 3)]).toEqual([140, 5, 0]);
  });

  test('a page that does not list all nodes: reports of the others are taken as included', () => {
    const log = new ReportLog();
    log.add(A, 1, hits(1, 10));
    log.add(B, 1, hits(1, 20));
    expect(log.hitsBeyond(contentsOf(false, reports(A, 0)), LIMIT)(1, 1)).toBe(10);
  });

  test('a page has to include what was counted before the log began, and what earlier pages include', () => {
    const log = new ReportLog();
    log.open([[A, 5]]);
    const isCovered = (...set: ReportSet[]): boolean =>
      log.isCovered(contentsOf(true, ...set), A, 0);
    expect([isCovered(), isCovered(reports(A, 4)), isCovered(reports(A, 5))]).toEqual([
      false,
      false,
      true,
    ]);
    expect(isCovered(reports(A, 9, 5, 1))).toBe(false);
    log.prune(contentsOf(true, reports(A, 8)));
    expect([isCovered(reports(A, 7)), isCovered(reports(A, 8))]).toEqual([false, true]);
  });

  test('has a bound: a page has to include the reports that were dropped', () => {
    const log = new ReportLog();
    const entries = Array.from({ length: 100 }, (_, n) => hits(n + 1)).flat();
    for (let seq = 1; seq <= 2000; seq++) log.add(A, seq, entries);
    expect(log.isCovered(contentsOf(true), A, 0)).toBe(false);
    const beyond = log.hitsBeyond(contentsOf(true), LIMIT)(1, 1);
    expect(beyond).toBeGreaterThan(200);
    expect(beyond).toBeLessThanOrEqual(501);
    expect(log.isCovered(contentsOf(true, reports(A, 2000 - beyond)), A, 0)).toBe(true);
  });

  test('is empty while no transfer runs', () => {
    const log = new ReportLog();
    log.close();
    log.add(A, 1, hits(1));
    expect(log.hitsBeyond(contentsOf(true), LIMIT)(1, 1)).toBe(0);
  });
});

describe('merged pages', () => {
  /** A page with keys 1 and 2. */
  const page = { refillTimes: [1, 1, 500, 2, 2, 500], width: 3 };

  test('a report that a page includes counts for other keys only', () => {
    const pages = new MergedPages();
    pages.add(LIMIT, contentsOf(true, reports(A, 4, 3, 1)), page, 0);
    const entries = [...hits(1), ...hits(9)];
    expect(pages.withoutMerged(A, 4, entries, 10)).toEqual(hits(9));
    expect(pages.withoutMerged(A, 3, entries, 10)).toEqual(entries);
    expect(pages.withoutMerged(A, 5, entries, 10)).toEqual(entries);
    expect(pages.withoutMerged(B, 4, entries, 10)).toEqual(entries);
    expect(pages.withoutMerged(A, 4, [LIMIT + 1, 1, 1, 1], 10)).toHaveLength(4);
    expect(pages.withoutMerged(A, 4, entries, 20_000)).toEqual(entries);
  });

  test('a node that is found later: its reports count from what all pages include', () => {
    const pages = new MergedPages();
    expect(pages.countedTo(A, 0)).toBeUndefined();
    pages.note(contentsOf(true, reports(A, 4), reports(B, 6)), 0);
    pages.note(contentsOf(true, reports(A, 4), reports(B, 8, 8, 1)), 10);
    expect([pages.countedTo(A, 20), pages.countedTo(B, 20)]).toEqual([4, 6]);
    expect([pages.isSettled(A), pages.isSettled(B)]).toEqual([true, false]);
    expect(pages.settledSets(20)).toEqual([reports(A, 4)]);
    expect(pages.countedTo(A, 200_000)).toBeUndefined();
  });

  test('a node whose first report comes during the transfer: all its reports count', () => {
    const pages = new MergedPages();
    pages.note(contentsOf(true, reports(A, 4)), 0);
    expect(pages.countedTo(B, 10)).toBe(0);
    pages.note(contentsOf(true, reports(A, 4), reports(B, 1)), 20);
    expect(pages.countedTo(B, 30)).toBe(0); // the keys of the first page lack its report
    pages.note(contentsOf(false, reports(A, 4), reports(B, 1)), 40);
    expect(pages.countedTo(OWN, 50)).toBeUndefined(); // the list has no space for it, perhaps
  });

  test('a transfer of one limit says nothing about nodes', () => {
    const pages = new MergedPages();
    pages.begin(false);
    pages.note(contentsOf(true, reports(A, 4)), 0);
    expect(pages.countedTo(A, 0)).toBeUndefined();
  });
});

describe('received sequences: reports that neither the state nor a report has brought', () => {
  test('are requested after a rewind; what has arrived counts once', () => {
    const received = new ReceivedSequences(5);
    for (const seq of [6, 7, 9]) received.accept(seq);
    received.rewindTo(3);
    expect(received.missingRanges(9)).toEqual([4, 2, 8, 1]);
    expect([6, 7, 9].map((seq) => received.accept(seq))).toEqual([false, false, false]);
    expect([4, 5, 8].map((seq) => received.accept(seq))).toEqual([true, true, true]);
    expect(received.isComplete).toBe(true);
  });

  test('are not requested if there are too many', () => {
    const received = new ReceivedSequences(10_000);
    received.rewindTo(0);
    expect(received.isComplete).toBe(true);
  });

  test('are listed as missing while no state has brought them', () => {
    const received = new ReceivedSequences(5);
    for (const seq of [6, 8]) received.accept(seq);
    expect(received.setOf(A, false)).toEqual(reports(A, 8, 7, 1));
    expect(received.setOf(A, true)).toEqual(reports(A, 8, 1, 5, 7, 1));
    expect(received.hasAll(reports(A, 8, 7, 1))).toBe(true);
    expect(received.hasAll(reports(A, 8))).toBe(false);
    expect(received.hasAll(reports(A, 9))).toBe(false);
  });
});
