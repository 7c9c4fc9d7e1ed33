/* Search without a server: browsers refuse workers to pages from a folder (file:), so the script of the worker runs in a hidden
   frame instead. Only what the search of the theme needs of a worker is there: messages in both directions, and importScripts. */
if (location.protocol === "file:") {
  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<body>");
      inside.document.close();
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      inside.importScripts = async (...urls) => {
        for (const each of urls) await this.load(each);
      };
      this.ready = this.load(url);
    }

    load(url) {
      const inside = this.frame.contentDocument;
      const script = inside.createElement("script");
      script.src = url;
      return new Promise((done, failed) => {
        script.onload = done;
        script.onerror = failed;
        inside.body.appendChild(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  }
  window.Worker = FrameWorker;
}
