// Loaded before Azurite, whose stores leave the uncommitted blocks of a blob when it is put or deleted, and count a blob
// that has nothing else as present for `If-None-Match: *`. Azure discards them, and the blob is absent:
// https://learn.microsoft.com/en-us/rest/api/storageservices/put-block
"use strict";

const path = require("path");
const blob = path.dirname(process.argv[1]);
const { default: Store } = require(path.join(blob, "persistence", "LokiBlobMetadataStore.js"));
const { createBlob, deleteBlob } = Store.prototype;

function discardBlocks(store, accountName, containerName, name) {
  store.db.getCollection(store.BLOCKS_COLLECTION).findAndRemove({ accountName, containerName, blobName: name });
}

Store.prototype.createBlob = async function (context, blob, ...conditions) {
  const { accountName, containerName, name } = blob;
  const blobs = this.db.getCollection(this.BLOBS_COLLECTION);
  if (blobs) blobs.findAndRemove({ accountName, containerName, name, isCommitted: false });
  const created = await createBlob.call(this, context, blob, ...conditions);
  discardBlocks(this, accountName, containerName, name);
  return created;
};

Store.prototype.deleteBlob = async function (context, account, container, name, options) {
  await deleteBlob.call(this, context, account, container, name, options);
  discardBlocks(this, account, container, name);
};
