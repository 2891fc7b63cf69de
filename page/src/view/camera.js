import { Refused } from "../files/refused.js";

/** One camera picture in a <video>. */
export class Camera {
  constructor(video) {
    this.video = video;
    this.stream = null;
    this.facing = "environment";
  }

  get isOpen() {
    return this.stream !== null;
  }

  /** Start it; whether there is another camera to switch to. */
  async open() {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Refused("No camera can be used at this address. Choose photos instead.");
    }
    this.close();
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({
        audio: false,
        video: { facingMode: this.facing, width: { ideal: 1280 }, height: { ideal: 960 } },
      });
    } catch (error) {
      if (error.name === "NotAllowedError") {
        throw new Refused("The camera was not allowed. Allow it in the browser's settings, or choose photos instead.");
      }
      if (error.name === "NotReadableError") {
        throw new Refused("The camera is in use by another program. Close that program, or choose photos instead.");
      }
      throw new Refused("There is no camera. Choose photos instead.");
    }
    this.stream = stream;
    this.video.srcObject = stream;
    const facing = stream.getVideoTracks()[0].getSettings().facingMode;
    this.video.classList.toggle("mirrored", facing !== "environment");
    await this.video.play().catch(() => {});
    const devices = await navigator.mediaDevices.enumerateDevices();
    return devices.filter((device) => device.kind === "videoinput").length > 1;
  }

  async switch() {
    this.facing = this.facing === "environment" ? "user" : "environment";
    return this.open();
  }

  close() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = null;
    this.video.srcObject = null;
  }

  /** The present frame as RGBA: {rgba, width, height}; null before the first. */
  frame() {
    const canvas = this.canvas();
    if (!canvas) return null;
    const { width, height } = canvas;
    const rgba = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    return { rgba, width, height };
  }

  /** The present frame as a JPEG file. */
  async photo(name) {
    const canvas = this.canvas();
    if (!canvas) return null;
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.95));
    return new File([blob], name, { type: "image/jpeg" });
  }

  canvas() {
    const { videoWidth: width, videoHeight: height } = this.video;
    if (!this.isOpen || !width) return null;
    this.drawing ??= document.createElement("canvas");
    this.drawing.width = width;
    this.drawing.height = height;
    this.drawing.getContext("2d", { willReadFrequently: true }).drawImage(this.video, 0, 0);
    return this.drawing;
  }
}
