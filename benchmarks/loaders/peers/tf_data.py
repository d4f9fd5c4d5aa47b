"""tf.data: TFRecords, decode_and_crop_jpeg (decodes only the crop's region), bilinear resize, two threads."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
from contract import IMAGENET_MEAN, IMAGENET_STD, TINY_PAD_PIXELS, Job, every_epoch, run_peer, train_files

SHARDS = 8
SHUFFLE_SAMPLES = 1000
FEATURES = {"jpeg": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
MEAN_LEVELS = tf.constant(255 * np.array(IMAGENET_MEAN), tf.float32)
STD_LEVELS = tf.constant(255 * np.array(IMAGENET_STD), tf.float32)


def convert(job: Job, target: Path) -> None:
    paths, labels = train_files(job.data)
    order = np.random.default_rng(0).permutation(len(paths))
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(str(target / f"train-{shard:03d}.tfrecord")) as writer:
            for index in order[shard::SHARDS]:
                jpeg = tf.train.Feature(bytes_list=tf.train.BytesList(value=[Path(paths[index]).read_bytes()]))
                label = tf.train.Feature(int64_list=tf.train.Int64List(value=[labels[index]]))
                features = tf.train.Features(feature={"jpeg": jpeg, "label": label})
                writer.write(tf.train.Example(features=features).SerializeToString())


def random_resized_crop(jpeg: tf.Tensor, pixels: int) -> tf.Tensor:
    whole_image = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(jpeg),
        whole_image,
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        max_attempts=10,
    )
    window = tf.stack([begin[0], begin[1], size[0], size[1]])
    return tf.image.resize(tf.image.decode_and_crop_jpeg(jpeg, window, channels=3), [pixels, pixels])


def make_load(job: Job):
    def load(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        sample = tf.io.parse_single_example(record, FEATURES)
        if job.task == "rrc224":
            image = random_resized_crop(sample["jpeg"], job.pixels)
        else:
            side = job.pixels + 2 * TINY_PAD_PIXELS
            image = tf.image.resize_with_crop_or_pad(tf.io.decode_jpeg(sample["jpeg"], channels=3), side, side)
            image = tf.image.random_crop(image, [job.pixels, job.pixels, 3])
        image = tf.image.random_flip_left_right(image)
        if job.is_float:
            image = (tf.cast(image, tf.float32) - MEAN_LEVELS) / STD_LEVELS
        return tf.cast(image, job.output), sample["label"]

    return load


def batches(job: Job, path: Path) -> Iterator[np.ndarray]:
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = job.workers
    files = tf.data.Dataset.from_tensor_slices(sorted(str(file) for file in path.glob("*.tfrecord"))).shuffle(SHARDS)
    dataset = files.interleave(tf.data.TFRecordDataset, cycle_length=job.workers, num_parallel_calls=job.workers)
    dataset = dataset.shuffle(SHUFFLE_SAMPLES).repeat().map(make_load(job), num_parallel_calls=job.workers)
    dataset = dataset.batch(job.batch, drop_remainder=True).prefetch(2).with_options(options)
    return (images for images, _ in dataset.as_numpy_iterator())


def epochs(job: Job, path: Path) -> Iterator[Iterable[np.ndarray]]:
    """tf.data.AUTOTUNE for interleave, map and prefetch: https://www.tensorflow.org/guide/data_performance"""
    files = tf.data.Dataset.from_tensor_slices(sorted(str(file) for file in path.glob("*.tfrecord"))).shuffle(SHARDS)
    dataset = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE).shuffle(SHUFFLE_SAMPLES)
    dataset = dataset.map(make_load(job), num_parallel_calls=tf.data.AUTOTUNE).batch(job.batch)
    loader = dataset.prefetch(tf.data.AUTOTUNE)
    return every_epoch(loader, lambda batch: batch[0].numpy())


if __name__ == "__main__":
    run_peer("tf-data", ("tensorflow_cpu",), batches, convert, epochs=epochs)
