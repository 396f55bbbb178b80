// An op of a program's own that fails with the status it is told, as any C++ runtime extension may.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

REGISTER_OP("OtelTfFailWith")
    .Input("x: float")
    .Output("y: float")
    .Attr("code: int")
    .Attr("payload: string = ''")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    });

class FailWithOp : public tensorflow::OpKernel {
 public:
  explicit FailWithOp(tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("code", &code_));
    OP_REQUIRES_OK(context, context->GetAttr("payload", &payload_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    absl::Status status(static_cast<absl::StatusCode>(code_),
                        "the extension says no");
    if (!payload_.empty()) {
      status.SetPayload("type.example.com/fail_with", absl::Cord(payload_));
    }
    context->SetStatus(status);
  }

 private:
  int code_;
  std::string payload_;
};

REGISTER_KERNEL_BUILDER(Name("OtelTfFailWith").Device(tensorflow::DEVICE_CPU),
                        FailWithOp);
