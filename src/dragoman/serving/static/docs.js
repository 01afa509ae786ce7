// Swagger UI shows the routes of openapi.json and sends requests to them.
SwaggerUIBundle({ url: "openapi.json", dom_id: "#api", deepLinking: true, docExpansion: "list", defaultModelsExpandDepth: -1 });
