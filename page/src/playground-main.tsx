/** The playground as a page of its own: one file that needs no server. */

import { render } from 'preact';
import { Playground } from './playground/playground.tsx';
import './style.css';

const root = document.getElementById('app');
if (root)
  render(
    <>
      <header>
        <div class="bar">
          <h1>Sluice playground</h1>
        </div>
      </header>
      <main id="main">
        <Playground />
      </main>
    </>,
    root,
  );
